"""vLLM's weight-transfer backend `prorl`, driven by vLLM's own HTTP routes.

`/init_weight_transfer_engine` begins to fetch and touches no weight; `/update_weights` waits for
that and loads, with any parallelism and data type. A LoRA adapter is only put where vLLM's own
routes load it from. Not supported: draft models, and vLLM before 0.25, whose backends do not load
weights themselves.
"""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
import vllm
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)

from prorl_service.net.fetching import Fetches, Offer
from prorl_service.utils.checkpoint import Shapes, difference, shapes_of
from prorl_vllm.adapters import install

if not hasattr(WeightTransferEngine, "start_weight_update"):
    raise ImportError("the weight-transfer backend prorl needs vLLM 0.25 or newer")


LOADS_BESIDE_LORA = (0, 32)
"""First release tested to load a whole model whose layers are wrapped for LoRA; 0.27 does not."""


@dataclass
class InitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """File to fetch; see `Offer`."""

    path: str
    size: int
    url: str
    shapes: dict[str, list[int]]
    """Shape of each tensor in the file."""
    base: str = ""
    adapter: dict[str, str] | None = None
    """`directory` into which a LoRA adapter is put, and its `config`; None for a whole model."""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """No fields: the fetched file is loaded."""


class PullEngine(WeightTransferEngine[InitInfo, UpdateInfo]):  # type: ignore[misc]
    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    supports_draft_weight_update = False
    _adapter: dict[str, str] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._directories: set[str] = set()
        self._fetches = Fetches()

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Raises `FetchFailed`, and `ValueError` for weights of another model."""
        self._fetches.end()
        if init_info.adapter is None:
            self._check(init_info.shapes)
        self._adapter = init_info.adapter
        offer = Offer(init_info.path, init_info.size, init_info.url, init_info.base)
        self._fetches.begin(offer)

    def _check(self, shapes: Shapes) -> None:
        if (
            self.vllm_config.lora_config is not None
            and vllm.__version_tuple__[:2] < LOADS_BESIDE_LORA
        ):
            raise ValueError(
                "prorl: vLLM before 0.32 cannot load a whole model if it was started with "
                "--enable-lora: start it without"
            )
        own = shapes_of(self.model_config.model, self.model_config.revision)
        is_head_tied = bool(self.model_config.hf_config.tie_word_embeddings)
        if problem := difference(shapes, own, is_head_tied=is_head_tied):
            raise ValueError(f"prorl: not the weights of {self.model_config.model}: {problem}")

    def start_weight_update(self) -> None:
        """Does nothing: weights that did not arrive must not touch the model."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        # The base class synchronizes an accelerator, which a CPU is not.
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Raises `FetchFailed`, and what vLLM raises for weights that are not the model's."""
        try:
            file = self._fetches.file()
            if self._adapter is None:
                self._load(file)
                self._fetches.keep()
            else:
                install(file, Path(self._adapter["directory"]), self._adapter["config"])
                self._directories.add(self._adapter["directory"])
        finally:
            self._fetches.end()

    def _load(self, file: BinaryIO) -> None:
        with safe_open(f"/proc/self/fd/{file.fileno()}", "pt") as weights:
            names = weights.keys()
            load(self.model, self.model_config, ((one, weights.get_tensor(one)) for one in names))

    def finish_weight_update(self) -> None:
        """Does nothing: `update_weights` has loaded the whole model."""

    @staticmethod
    def trainer_send_weights(iterator: object, trainer_args: object) -> None:
        """Does nothing: the service offers a file. vLLM up to 0.27 wants it defined."""

    def shutdown(self) -> None:
        self._fetches.close()
        for directory in self._directories:
            shutil.rmtree(directory, ignore_errors=True)


def load(model: Any, model_config: Any, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Replaces the weights by a whole checkpoint, layer by layer, as vLLM packs them."""
    initialize_layerwise_reload(model)
    model.load_weights(weights)
    finalize_layerwise_reload(model, model_config)
    _repack_heads(model)


def _repack_heads(model: torch.nn.Module) -> None:
    """Repacks heads: on CPU vLLM keeps a copy that a reload of tied weights does not renew."""
    for module in model.modules():
        if isinstance(module, ParallelLMHead):
            module.quant_method.process_weights_after_loading(module)
