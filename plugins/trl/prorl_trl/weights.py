"""The trainer's weights, and how the service gets them."""

import logging
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

import torch

from prorl_service.client import RolloutClient, ServiceCallError
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
    merged,
)
from prorl_trl.nccl import Broadcaster
from prorl_trl.safetensors_file import SafetensorsFile

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PolicyWeights:
    """The weights of a policy, in the model's memory, under the names of its checkpoint."""

    tensors: Mapping[str, torch.Tensor]
    layers: Mapping[str, Any] = field(default_factory=dict)
    """PEFT's layer of each tensor to which adapters are added, keyed by name."""
    adapter: Adapter | None = None
    """All that is trained, if engines can put it on the base model."""

    def read(self, name: str) -> torch.Tensor:
        """The weight with its adapters."""
        layer, tensor = self.layers.get(name), self.tensors[name]
        return tensor if layer is None else merged(layer, name.rpartition(".")[2])


@contextmanager
def full_weights(trainer: Any) -> Iterator[PolicyWeights]:
    """The policy's weights, with LoRA adapters.

    A collective: all processes must enter. Only the main one may get tensors (ZeRO-3, FSDP). They
    are valid inside the context only.
    """
    accelerator = trainer.accelerator
    model = accelerator.unwrap_model(trainer.model)
    # `model_wrapped`, because ZeRO-3 gathers through DeepSpeed's engine object.
    tensors = accelerator.get_state_dict(trainer.model_wrapped)
    adapter = adapter_of(model, tensors)
    tensors = checkpoint_names(tensors)
    if model.config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    yield PolicyWeights(tensors, adapted_layers(model), adapter)


def checkpoint_names(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Named as in the base model's checkpoint, without the adapters' own weights."""
    return {checkpoint_name(name): one for name, one in weights.items() if is_of_base(name)}


def send(
    client: RolloutClient,
    weights: PolicyWeights,
    version: int,
    broadcaster: Broadcaster,
    *,
    rewind: bool,
) -> WeightsReport:
    """In the form and type that the engines take: by NCCL, as a file that the service finds in its
    own directory, where this process sees that, or over HTTP. Raises `ServiceCallError`."""
    adapter = weights.adapter
    query = WeightsQuery(nccl=nccl.is_possible())
    if adapter is not None:
        query = query.model_copy(update={"lora_rank": adapter.rank, "base": adapter.base})
    terms = client.weights_terms(query)
    if terms.workers:
        if rewind:
            logger.info("weights are broadcast by NCCL to %d workers", terms.workers)
        update = nccl.Update(client, version, rewind)
        return broadcaster.send(weights, _dtype(terms), terms, update)
    if adapter is not None and terms.form is WeightsForm.ADAPTER:
        file = SafetensorsFile(adapter, _dtype(terms), {ADAPTER_CONFIG: adapter.config})
    else:
        file = SafetensorsFile(weights, _dtype(terms))
    directory = Path(terms.directory)
    # Unlike `Path.exists`, false as well for what another user's directory hides.
    is_shared = os.path.exists(directory / terms.probe) and os.access(directory, os.W_OK)
    if rewind:
        whole = f"adapter merged: {terms.reason}" if terms.reason else "whole model"
        form = "adapter alone" if terms.form is WeightsForm.ADAPTER else whole
        way = f"by {directory}" if is_shared else "over HTTP"
        logger.info("weights are sent %s as %s (%s)", way, terms.dtype or "they are", form)
    if not is_shared:
        return client.stream_weights(file, version, rewind=rewind)
    path = directory / f"weights-{uuid.uuid4().hex}.partial"
    file.write(path)
    path = path.rename(path.with_suffix(".safetensors"))
    try:
        return client.load_weights(str(path), version, rewind=rewind)
    except ServiceCallError as error:
        if error.http_status != HTTPStatus.GONE:
            raise
    # The service was started again.
    return send(client, weights, version, broadcaster, rewind=rewind)


def send_directory(
    client: RolloutClient, weights: PolicyWeights, directory: Path, version: int, *, rewind: bool
) -> WeightsReport:
    """By a directory that the engines read themselves. Raises `ServiceCallError`."""
    file = SafetensorsFile(weights, _dtype(client.weights_terms(WeightsQuery(as_file=False))))
    return client.load_weights(str(save(file, directory, version)), version, rewind=rewind)


def save(file: SafetensorsFile, directory: Path, version: int) -> Path:
    """Writes `directory`/version-N and removes all older ones but the last, which may be in use."""
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
