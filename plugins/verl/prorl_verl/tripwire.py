"""The last look at what VeRL trains on, immediately before each update of the actor.

Whatever a sampler, a data set, a reward or a trainer of the user's own has done until then: the
rows are those that the plug-in made, with as many unmasked tokens, of this trainer's weights, and
the trainer's logprobs are the engines'. The numbers are VeRL's own; nothing is computed again.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, NoReturn

import torch
import transfer_queue as tq
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from prorl_service.client import off_policy
from prorl_service.client.off_policy import Cause, OffPolicyWatch, PolicyDiffers
from prorl_verl.settings import Settings, is_on_policy
from prorl_verl.tensors import SAMPLED

logger = logging.getLogger(__name__)

CAUSES = (
    off_policy.ANOTHER_RUN,
    off_policy.NOT_SENT,
    off_policy.ROWS_CHANGED,
    off_policy.TEMPERATURE,
    off_policy.OTHER_FORWARD,
)
"""Causes that no setting of VeRL excludes."""
COLUMNS = ("response_mask", "rollout_log_probs", "old_log_probs", "extra_fields")


@dataclass(frozen=True, slots=True)
class TakenRow:
    """A row as the trainer has it. mask: 0/1[R]. engine, trainer: float[R], logprobs in nats."""

    mask: torch.Tensor
    engine: torch.Tensor
    trainer: torch.Tensor
    extra: Mapping[str, Any]
    """Fields that the plug-in gave it; none in a row that VeRL fills a batch with."""


class Tripwire:
    """Judge of a run's updates. One for each trainer."""

    def __init__(self, config: Mapping[str, Any], settings: Settings) -> None:
        correction = config["algorithm"].get("rollout_correction") or {}
        self._is_bypassed = bool(correction.get("bypass_mode"))
        self._may_drop = bool(correction.get("rollout_rs"))
        self._is_on_policy = is_on_policy(config, settings)
        self._watch = OffPolicyWatch([*CAUSES, *_causes_in(config["actor_rollout_ref"]["rollout"])])

    def check(self, rows: Sequence[TakenRow], *, step: int) -> dict[str, float]:
        """Returns metrics of the update of `step`. Raises `PolicyDiffers`."""
        for row in rows:
            self._check_row(row, step)
        if self._is_bypassed:
            return {}
        newest = [row for row in rows if row.extra.get("min_global_steps") == step - 1]
        gaps = [(row.engine - row.trainer).abs()[row.mask.bool()] for row in newest]
        if not any(map(len, gaps)):
            return {}
        mean, largest = float(torch.cat(gaps).mean()), float(torch.cat(gaps).max())
        self._judge(mean, largest, step)
        return {"prorl/off_policy": mean, "prorl/off_policy_max": largest}

    def check_bypassed(
        self, rows: Sequence[TakenRow], kl_nats: float, *, step: int
    ) -> dict[str, float]:
        """Returns metrics from an update's own mean of engine minus trainer, the only number that
        VeRL has if it does not compute logprobs again. Raises `PolicyDiffers`."""
        oldest = min(row.extra["min_global_steps"] for row in rows if row.extra.get(SAMPLED))
        if not self._is_bypassed or oldest < step - 1:
            return {}
        self._judge(abs(kl_nats), None, step)
        return {"prorl/off_policy": abs(kl_nats)}

    def _judge(self, mean_nats: float, max_nats: float | None, step: int) -> None:
        try:
            warning = self._watch.add(mean_nats, max_nats, step=step)
        except PolicyDiffers as error:
            _stop(error.message, error.hint)
        if warning:
            logger.warning("%s", warning)

    def _check_row(self, row: TakenRow, step: int) -> None:
        taken, sampled = int(row.mask.sum()), int(row.extra.get(SAMPLED, 0))
        if taken != sampled and not (self._may_drop and taken < sampled):
            _stop(
                f"step {step}: the trainer takes {taken} tokens of a row that has {sampled}:",
                off_policy.ROWS_CHANGED.text,
            )
        if not sampled:
            return
        oldest, newest = row.extra["min_global_steps"], row.extra["max_global_steps"]
        if newest > step - 1 or (self._is_on_policy and oldest < step - 1):
            _stop(
                f"step {step}: a row has tokens of weights {oldest} to {newest}, the trainer's are "
                f"{step - 1}:",
                off_policy.ANOTHER_RUN.text,
            )


def _causes_in(rollout: Mapping[str, Any]) -> Iterator[Cause]:
    if rollout["top_p"] < 1 or rollout["top_k"] > 0:
        yield off_policy.CUT_OFF
    if rollout.get("quantization"):
        yield off_policy.QUANTISED


def _stop(message: str, hint: str) -> NoReturn:
    """Says all in the message, since Ray shows nothing else of another process' error."""
    raise PolicyDiffers(f"{message} {hint}")


def install(tripwire: Tripwire) -> None:
    """Adds `tripwire` to the trainers of this process, a user's own included."""
    for trainer in _updating(PPOTrainer):
        _watch(trainer, tripwire)


def _updating(trainer: Any) -> Iterator[Any]:
    """Yields `trainer` and each class derived from it that has an update of its own."""
    if "_update_actor" in vars(trainer):
        yield trainer
    for derived in trainer.__subclasses__():
        yield from _updating(derived)


def _watch(trainer: Any, tripwire: Tripwire) -> None:
    update = trainer._update_actor

    @wraps(update)
    def watched(self: Any, batch: Any, metrics: dict[str, Any]) -> Any:
        rows = _rows_of(batch)
        measured = tripwire.check(rows, step=self.global_steps)
        batch = update(self, batch=batch, metrics=metrics)
        kl = float(metrics.get(KL, 0.0))
        metrics.update(measured, **tripwire.check_bypassed(rows, kl, step=self.global_steps))
        return batch

    trainer._update_actor = watched


KL = "actor/ppo_kl"
"""VeRL's metric: the mean of the logprobs of the loss's old policy minus the trainer's."""


def _rows_of(batch: Any) -> list[TakenRow]:
    data = tq.kv_batch_get(
        keys=batch.keys, partition_id=batch.partition_id, select_fields=list(COLUMNS)
    )
    rows = zip(*([*data[name]] for name in COLUMNS), batch.tags, strict=True)
    return [
        # VeRL copies the fields of some row to those that it fills the batch with.
        TakenRow(mask, engine, trainer, {} if tag.get("is_padding") else getattr(own, "data", own))
        for mask, engine, trainer, own, tag in rows
    ]
