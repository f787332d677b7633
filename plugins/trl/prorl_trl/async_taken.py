"""What an AsyncGRPOTrainer takes, compared with the samples that its worker gave it.

Each sample of the loss must be one of the worker's, with the logprobs that it was sampled with, and
those of the newest policy must be the trainer's own. Main process only, where the worker is. Before
TRL's loss knew its samples, only the first policy's are compared.
"""

import inspect
import logging
from collections.abc import Iterator, Mapping
from functools import wraps
from typing import Any

import numpy as np
import torch

from prorl_service.client import off_policy
from prorl_service.client.off_policy import OffPolicyWatch, PolicyDiffers
from prorl_trl.taken import METRIC, causes

logger = logging.getLogger(__name__)


class GivenSamples:
    """Versions of the samples that the trainer has been given, by their logprobs."""

    def __init__(self) -> None:
        self._versions: dict[int, int] = {}

    def add(self, fields: Mapping[str, Any]) -> None:
        """Takes the fields of a `RolloutSample`."""
        logprobs = fields["old_log_probs"][fields["completion_mask"] == 1]
        self._versions[_key(logprobs)] = fields["model_version"]

    def version(self, logprobs: torch.Tensor) -> int | None:
        """Returns None for a sample that was not given."""
        return self._versions.get(_key(logprobs.float().cpu().numpy()))


def _key(logprobs: Any) -> int:
    return hash(np.ascontiguousarray(logprobs, np.float32).tobytes())


def trainer_of(weights: Iterator[Any]) -> Any:
    """Returns the trainer whose generator `weights` is, None for any other iterator."""
    if not inspect.isgenerator(weights):
        return None
    trainer = inspect.getgeneratorlocals(weights).get("self")
    return trainer if hasattr(trainer, "compute_loss") else None


def watch_losses(trainer: Any) -> None:
    """Has each batch of the trainer's loss compared; its errors are `PolicyDiffers`."""
    worker = trainer.rollout_worker
    given: GivenSamples | None = getattr(worker, "given", None)
    if given is None or hasattr(trainer, "prorl_watch"):
        return
    trainer.prorl_watch = watch = OffPolicyWatch(causes(trainer, worker.sampling))
    computed = trainer.compute_loss

    @wraps(computed)
    def compute_loss(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        outputs: list[Any] = []
        handle = model.register_forward_hook(lambda *call: outputs.append(call[-1]))
        try:
            loss = computed(model, inputs, *args, **kwargs)
        finally:
            handle.remove()
        if outputs:
            differences = _differences(trainer, given, inputs, outputs[0]["log_probs"].detach())
            _judge(trainer, watch, differences)
        return loss

    trainer.compute_loss = compute_loss


def _judge(trainer: Any, watch: OffPolicyWatch, differences: torch.Tensor) -> None:
    if not differences.numel():
        return
    mean, largest = float(differences.mean()), float(differences.max())
    trainer._metrics["train"][METRIC].append(mean)
    if warning := watch.add(mean, largest, step=trainer.state.global_step + 1):
        logger.warning(warning)


def _differences(
    trainer: Any, given: GivenSamples, inputs: Mapping[str, Any], ours: torch.Tensor
) -> torch.Tensor:
    """Returns those of the logprobs of the newest policy's tokens. Raises `PolicyDiffers`."""
    is_synced = trainer.state.global_step % trainer.args.weight_sync_steps == 0
    if "segment_id" not in inputs:
        of_rows = _of_rows(inputs, ours)
        return of_rows if is_synced and trainer.model_version == 1 else of_rows[:0]
    selected = inputs["token_index"] >= 0
    sampled, samples = inputs["old_log_probs"][selected], inputs["segment_id"][selected]
    differences: torch.Tensor = (ours.flatten()[inputs["token_index"][selected]] - sampled).abs()
    is_newest = torch.zeros_like(samples, dtype=torch.bool)
    for sample in samples.unique():
        version = given.version(sampled[samples == sample])
        if version is None:
            step = trainer.state.global_step + 1
            raise PolicyDiffers(
                f"step {step}: the loss takes {int((samples == sample).sum())} tokens that are of "
                "no sample of the worker",
                hint=off_policy.ROWS_CHANGED.text,
            )
        is_newest |= (samples == sample) & (version == trainer.model_version) & is_synced
    return differences[is_newest]


def _of_rows(inputs: Mapping[str, Any], ours: torch.Tensor) -> torch.Tensor:
    """Returns all differences in a batch as TRL 1.11 makes it: sequences end to end."""
    kept = inputs["attention_mask"].bool()
    mask = inputs["completion_mask"][kept][1:].bool()
    differences: torch.Tensor = (ours.flatten() - inputs["old_log_probs"][kept][1:]).abs()[mask]
    return differences
