"""The trainer's weights, and how the service gets them."""

import logging
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

import torch

from prorl_service.client import RolloutClient, ServiceCallError
from prorl_service.client.trainers_service import TrainersService
from prorl_service.client.weights_copy import WeightsCopy
from prorl_service.schemas import (
    ADAPTER_CONFIG,
    WeightsForm,
    WeightsQuery,
    WeightsReport,
    WeightsTerms,
)
from prorl_trl import nccl
from prorl_trl.adapters import (
    Adapter,
    adapted_layers,
    adapter_of,
    checkpoint_name,
    is_of_base,
    is_off,
    merged,
    of_active,
)
from prorl_trl.nccl import Broadcaster
from prorl_trl.processes import Shards, Value, on_main
from prorl_trl.represented import Representation, checkpoint_shapes, head_name
from prorl_trl.safetensors_file import SafetensorsFile, Tensors

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PolicyWeights:
    """The weights of a policy under the names of its checkpoint, in the model's memory: whole, or
    this process's shards of them."""

    tensors: Mapping[str, torch.Tensor]
    layers: Mapping[str, Any] = field(default_factory=dict)
    """PEFT's layer of each tensor to which adapters are added, keyed by name."""
    adapter: Adapter | None = None
    """Adapter that holds all that is trained, if engines can apply it to the base model."""
    shards: Shards | None = None
    """Source 0 is the model, source 1 the adapter; None if the weights are whole."""

    def read(self, name: str) -> torch.Tensor:
        """Returns the weight with its adapters."""
        layer, tensor = self.layers.get(name), self.tensors[name]
        return tensor if layer is None else merged(layer, name.rpartition(".")[2])

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name in self.tensors:
            yield name, self.read(name)

    @property
    def whole_model(self) -> Tensors:
        return self if self.shards is None else self.shards.whole(0)

    @property
    def whole_adapter(self) -> Tensors:
        """Adapter of weights that have one."""
        assert self.adapter is not None
        return self.adapter if self.shards is None else self.shards.whole(1)


def policy_weights(trainer: Any) -> PolicyWeights:
    """Returns the policy's weights, with LoRA adapters, valid until the next step. A collective:
    all processes must call it. Under ZeRO-3 and FSDP1 only the main one may get tensors."""
    accelerator, wrapped = trainer.accelerator, trainer.model_wrapped
    model = accelerator.unwrap_model(trainer.model)
    # `wrapped`, because ZeRO-3 gathers through DeepSpeed's engine object.
    is_sharded = accelerator.is_fsdp2
    tensors = wrapped.state_dict() if is_sharded else accelerator.get_state_dict(wrapped)
    adapter = adapter_of(model, tensors)
    tensors = of_checkpoint(model, tensors)
    layers = {} if is_off(model) else adapted_layers(model)
    weights = PolicyWeights(tensors, layers, adapter)
    if not is_sharded:
        return weights
    return replace(weights, shards=Shards([weights] if adapter is None else [weights, adapter]))


def of_checkpoint(model: Any, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns the weights that the engines' checkpoint has, and others that `check_represented`
    refuses."""
    named = checkpoint_names(of_active(model, tensors))
    head = head_name(model)
    shapes = checkpoint_shapes(model) if hasattr(model, "peft_config") else named
    return {name: one for name, one in named.items() if name in shapes and name != head}


def on_main_with(weights: PolicyWeights, accelerator: Any, work: Callable[[], Value]) -> Value:
    """Runs `work`, which may read the weights, on the main process; the others help to gather
    shards. Returns and raises like `on_main`."""
    shards = weights.shards
    if shards is None:
        return on_main(accelerator, work)

    def work_and_end() -> Value:
        try:
            return work()
        finally:
            shards.end()

    return on_main(accelerator, work_and_end, shards.follow)


def checkpoint_names(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns weights named as in the base checkpoint, without the adapters' own weights."""
    return {checkpoint_name(name): one for name, one in weights.items() if is_of_base(name)}


class WeightsSender:
    """A training's way of sending weights."""

    def __init__(self, service: TrainersService, directory: Path | None = None) -> None:
        """`directory`: shared with the engines; None sends as the service wants."""
        self._service, self._directory = service, directory
        self._broadcaster = Broadcaster()
        self._copy = WeightsCopy()
        self._representation = Representation()

    def send(self, weights: PolicyWeights, model: Any, *, after: int) -> int:
        """Returns the version that the service gave them. `model`: whose weights they are, if that
        is known; `after`: as for `send`. Raises `NotRepresented`, `ServiceCallError`."""
        if model is not None:
            self._representation.check(model, weights.tensors)
        with self._service.client() as client:
            if self._directory is None:
                report = send(client, weights, self._broadcaster, self._copy, after=after)
            else:
                report = send_directory(client, weights, self._directory, after=after)
        if report.pending:
            text = "engines %s are down; they get weights %d later"
            logger.warning(text, report.pending, report.version)
        return report.version


def send(
    client: RolloutClient,
    weights: PolicyWeights,
    broadcaster: Broadcaster,
    copy: WeightsCopy,
    *,
    after: int = 0,
) -> WeightsReport:
    """Sends weights in the form and type that the engines take: by NCCL, as a file in the service's
    own directory, if this process sees that, or over HTTP, a whole model then by its difference
    from the `copy` of the last one. `after`: version of the last ones; 0 before the first. Raises
    `ServiceCallError`."""
    adapter = weights.adapter
    query = WeightsQuery(nccl=nccl.is_possible(), torch_nccl=torch.cuda.is_available())
    if adapter is not None:
        query = query.model_copy(update={"lora_rank": adapter.rank, "base": adapter.base})
    terms = client.weights_terms(query)
    is_first, after = after == 0, max(after, terms.newest)
    if terms.workers:
        if is_first:
            logger.info("weights are broadcast by NCCL to %d workers", terms.workers)
        update = nccl.Update(client, after)
        return broadcaster.send(weights.whole_model, _dtype(terms), terms, update)
    is_alone = adapter is not None and terms.form is WeightsForm.ADAPTER
    if adapter is not None and is_alone:
        config = {ADAPTER_CONFIG: adapter.config}
        file = SafetensorsFile(weights.whole_adapter, _dtype(terms), config)
    else:
        file = SafetensorsFile(weights.whole_model, _dtype(terms))
    directory = Path(terms.directory)
    # Unlike `Path.exists`, `os.path.exists` is false also for what another user's directory hides.
    is_there = os.path.exists(directory / terms.probe)
    is_shared = is_there and os.access(directory, os.W_OK)
    if is_first:
        whole = f"adapter merged: {terms.reason}" if terms.reason else "whole model"
        form = "adapter alone" if is_alone else whole
        way = f"by {directory}" if is_shared else "over HTTP"
        logger.info("weights are sent %s as %s (%s)", way, terms.dtype or "they are", form)
    if not is_shared and is_alone:
        return client.stream_weights(file, after=after)
    if not is_shared:
        return copy.send(client, file, base=terms.base, after=after)
    path = directory / f"weights-{uuid.uuid4().hex}.partial"
    file.write(path)
    path = path.rename(path.with_suffix(".safetensors"))
    try:
        return client.load_weights(str(path), after=after)
    except ServiceCallError as error:
        if error.http_status != HTTPStatus.GONE:
            raise
    # The service was restarted.
    return send(client, weights, broadcaster, copy, after=after)


def send_directory(
    client: RolloutClient, weights: PolicyWeights, directory: Path, *, after: int = 0
) -> WeightsReport:
    """Writes the weights into a directory that the engines read. `after`: as for `send`. Raises
    `ServiceCallError`."""
    terms = client.weights_terms(WeightsQuery(as_file=False))
    after = max(after, terms.newest)
    file = SafetensorsFile(weights.whole_model, _dtype(terms))
    return client.load_weights(str(save(file, directory, after + 1)), after=after)


def save(file: SafetensorsFile, directory: Path, version: int) -> Path:
    """Writes `directory`/version-N and keeps only the one before it, which may be in use."""
    target = directory / f"version-{version}"
    target.mkdir(parents=True, exist_ok=True)
    path = target / "model.safetensors"
    path.unlink(missing_ok=True)
    file.write(path)
    others = sorted(directory.glob("version-*"), key=lambda path: path.stat().st_mtime)
    for outdated in others[:-2]:
        shutil.rmtree(outdated)
    return target


def _dtype(terms: WeightsTerms) -> torch.dtype | None:
    return None if terms.dtype is None else getattr(torch, terms.dtype)
