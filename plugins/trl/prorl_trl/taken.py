"""A comparison of what TRL's trainers take with the rows or samples that they were given.

Between rollouts and loss lies code of TRL, of accelerate and of the user's subclass. The loss of a
GRPOTrainer must see each row's tokens, mask and logprobs as they were sampled; each sample in the
loss of an AsyncGRPOTrainer must be one of its worker's, with the logprobs that it was sampled with.
The logprobs that a trainer computes of the newest policy's tokens must be those of the engines.
Does not know rewards and advantages.
"""

import inspect
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import numpy as np
import torch
import trl

from prorl_service.client import off_policy
from prorl_service.client.off_policy import Cause, OffPolicyWatch, PolicyDiffers
from prorl_service.schemas import Sampling
from prorl_trl.convert import TrlRow

logger = logging.getLogger(__name__)

METRIC = "prorl/off_policy"
_TAKEN = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
"""Tensors that the loss is computed of, in all supported releases."""
Key = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(slots=True)
class _Given:
    """Rows of one call of the trainer, on this process."""

    rows: Sequence[TrlRow] = ()
    newest_version: int | None = None
    """Version whose rows are compared with the trainer's logprobs; None compares all."""
    by_tokens: dict[Key, list[TrlRow]] = field(default_factory=dict)
    uses: Counter[Key] = field(default_factory=Counter)
    is_compared: bool = False


class TakenRows:
    """Comparison that is installed in a trainer, once. Its errors are `PolicyDiffers`."""

    def __init__(self, trainer: Any, sampling: Sampling, *, judges: bool) -> None:
        """`judges`: False for rows that are replayed, which another policy may have sampled."""
        self._trainer, self._sampling = trainer, sampling
        self._watch = OffPolicyWatch(()) if judges else None
        self._given = _Given()
        trainer.prorl_taken = self
        computed = trainer.compute_loss

        @wraps(computed)
        def compute_loss(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            self._count(inputs)
            self._compare_logprobs(inputs)
            return computed(model, inputs, *args, **kwargs)

        trainer.compute_loss = compute_loss

    def expect(self, rows: Sequence[TrlRow], newest_version: int | None) -> None:
        """Takes the rows that the trainer is given next, on this process."""
        self._given = _Given(rows, newest_version)
        for row in rows:
            key = self._key(row.prompt_ids, row.completion_ids)
            self._given.by_tokens.setdefault(key, []).append(row)

    # --- tokens, masks and logprobs -------------------------------------------------------------

    def check(self, inputs: Mapping[str, Any]) -> list[tuple[Key, TrlRow]]:
        """Returns the row of each sequence in a batch. Raises `PolicyDiffers`."""
        if not self._given.rows or any(name not in inputs for name in _TAKEN):
            return []
        return [self._row_of(*sequence) for sequence in self._sequences(inputs)]

    def _count(self, inputs: Mapping[str, Any]) -> None:
        """Checks a batch of the loss, and that no row is left out or taken too often."""
        keys = [key for key, _ in self.check(inputs)]
        trainer, given = self._trainer, self._given
        if not keys:
            return
        is_training = trainer.model.training
        batches = trainer.args.steps_per_generation if is_training else 1
        if len(keys) * batches != len(given.rows):
            raise self._error(
                f"the loss takes {len(keys) * batches} rows of the {len(given.rows)} given"
            )
        given.uses.update(keys)
        times = trainer.num_iterations if is_training else 1
        for key in keys:
            if given.uses[key] > times * len(given.by_tokens[key]):
                label = _name(given.by_tokens[key][0])
                raise self._error(f"the loss takes {label} more often than num_iterations={times}")

    def _sequences(self, inputs: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
        mask = _loss_mask(inputs).tolist()
        logprobs = inputs.get("sampling_per_token_logps")
        sampled = [None] * len(mask) if logprobs is None else logprobs.float().cpu()
        prompts, kept = inputs["prompt_ids"].tolist(), inputs["prompt_mask"].tolist()
        completions = inputs["completion_ids"].tolist()
        for prompt, is_kept, ids, one, values in zip(
            prompts, kept, completions, mask, sampled, strict=True
        ):
            yield [x for x, keep in zip(prompt, is_kept, strict=True) if keep], ids, one, values

    def _row_of(
        self, prompt: list[int], ids: list[int], mask: list[int], logprobs: torch.Tensor | None
    ) -> tuple[Key, TrlRow]:
        key = self._key(prompt, ids)
        rows = self._given.by_tokens.get(key)
        if rows is None:
            raise self._error(
                f"the loss takes {len(key[0])} + {len(key[1])} tokens that no rollout of this "
                "step has"
            )
        masks = [self._mask(row, len(ids)) for row in rows]
        if mask not in masks:
            count, sampled = sum(map(bool, mask)), sum(masks[0])
            raise self._error(
                f"the loss takes {count} tokens of {_name(rows[0])}, which has {sampled} to learn "
                "from" + (", but others" if count == sampled else "")
            )
        row = rows[masks.index(mask)]
        if logprobs is not None and not any(_has(one, logprobs, mask) for one in rows):
            raise self._error(f"the loss takes other logprobs of {_name(row)} than were sampled")
        return key, row

    def _key(self, prompt: Sequence[int], completion: Sequence[int]) -> Key:
        """Returns a row's tokens without the padding, which may be a token of its own, too."""
        pad, end = self._trainer._tokenizer.pad_token_id, len(completion)
        while end and completion[end - 1] == pad:
            end -= 1
        return tuple(prompt), tuple(completion[:end])

    def _mask(self, row: TrlRow, width: int) -> list[int]:
        """Returns the mask that the loss must have, by TRL's own rule for truncated rows."""
        tokenizer = self._trainer._tokenizer
        ends = getattr(self._trainer, "eos_token_ids", [tokenizer.eos_token_id])
        is_cut = row.completion_ids[-1] not in (*ends, tokenizer.pad_token_id)
        if is_cut and self._trainer.mask_truncated_completions:
            return [0] * width
        return (row.env_mask + [0] * width)[:width]

    # --- the policy -----------------------------------------------------------------------------

    def _compare_logprobs(self, inputs: Mapping[str, Any]) -> None:
        """Compares a whole call of the trainer at the first batch of its loss. A collective."""
        given, trainer = self._given, self._trainer
        if given.is_compared or not given.rows:
            return
        given.is_compared = True
        buffered = trainer._buffered_inputs if trainer.model.training else None
        found = [self._differences(batch) for batch in buffered or [inputs]]
        if any(one is None for one in found):
            return
        differences = torch.cat([one for one in found if one is not None])
        largest = differences.max() if differences.numel() else differences.new_zeros(())
        count = differences.new_tensor(differences.numel())
        sums = trainer.accelerator.gather(torch.stack([differences.sum(), count, largest])[None])
        if total := int(sums[:, 1].sum()):
            self._judge(float(sums[:, 0].sum()) / total, float(sums[:, 2].max()))

    def _differences(self, batch: Mapping[str, Any]) -> torch.Tensor | None:
        """Returns those of the logprobs of the newest policy's tokens, None if the trainer has not
        computed them."""
        ours, sampled = (batch.get(f"{name}_per_token_logps") for name in ("old", "sampling"))
        rows = [row for _, row in self.check(batch)]
        if ours is None or sampled is None or not rows:
            return None
        newest = self._given.newest_version
        counts = [newest is None or row.policy_version == newest for row in rows]
        mask = _loss_mask(batch).bool() & torch.tensor(counts, device=ours.device)[:, None]
        differences: torch.Tensor = (ours - sampled).abs().float()[mask]
        return differences

    def _judge(self, mean_nats: float, max_nats: float) -> None:
        is_training = self._trainer.model.training
        if self._watch is not None:
            self._watch.causes = causes(self._trainer, self._sampling)
        _judge(self._trainer, self._watch, mean_nats, max_nats, is_training=is_training)

    def _error(self, problem: str) -> PolicyDiffers:
        step = self._trainer.state.global_step + self._trainer.model.training
        return PolicyDiffers(f"step {step}: {problem}", hint=off_policy.ROWS_CHANGED.text)


def _judge(
    trainer: Any,
    watch: OffPolicyWatch | None,
    mean_nats: float,
    max_nats: float,
    *,
    is_training: bool = True,
) -> None:
    """Logs the mean, and warns of one that is too large. Raises `PolicyDiffers`."""
    trainer._metrics["train" if is_training else "eval"][METRIC].append(mean_nats)
    step = trainer.state.global_step + is_training
    warning = watch.add(mean_nats, max_nats, step=step) if watch else None
    if warning and trainer.accelerator.is_main_process:
        logger.warning(warning)


def causes(trainer: Any, sampling: Sampling) -> list[Cause]:
    """Returns the causes of another policy's logprobs that this training does not exclude."""
    found = [off_policy.ANOTHER_RUN, off_policy.NOT_SENT, off_policy.TEMPERATURE]
    model = trainer.accelerator.unwrap_model(trainer.model)
    cuts = sampling.top_p < 1 or sampling.top_k > 0
    if cuts:
        found.append(off_policy.CUT_OFF)
    if cuts or sampling.temperature != 1:
        found.append(off_policy.LOGPROBS_MODE)
    if getattr(model.config, "tie_word_embeddings", False):
        found.append(off_policy.TIED_HEAD)
    dropouts = (one.p for one in model.modules() if isinstance(one, torch.nn.Dropout))
    if any(dropouts) or getattr(model.config, "attention_dropout", None):
        found.append(off_policy.DROPOUT)
    return [*found, off_policy.QUANTISED, off_policy.ROWS_CHANGED, off_policy.OTHER_FORWARD]


def _loss_mask(inputs: Mapping[str, Any]) -> torch.Tensor:
    mask: torch.Tensor = inputs["completion_mask"]
    return mask if inputs.get("tool_mask") is None else mask * inputs["tool_mask"]


def _has(row: TrlRow, logprobs: torch.Tensor, mask: Sequence[int]) -> bool:
    where = [number for number, is_taken in enumerate(mask) if is_taken]
    own = torch.tensor([row.logprobs[number] for number in where])
    return torch.allclose(logprobs[where], own, atol=1e-5)


def _name(row: TrlRow) -> str:
    return f"rollout {row.label.partition(chr(10))[0] or '(failed)'}"


def _watched(original: Any) -> Any:
    @wraps(original)
    def compute_loss(trainer: Any, model: Any, inputs: Any) -> Any:
        if (taken := getattr(trainer, "prorl_taken", None)) is not None:
            taken.check(inputs)
        return original(trainer, model, inputs)

    return compute_loss


# A subclass may change what it passes on to TRL's own loss.
trl.GRPOTrainer._compute_loss = _watched(trl.GRPOTrainer._compute_loss)


# --- AsyncGRPOTrainer, on the main process, where its worker is ----------------------------------


class GivenSamples:
    """Versions of the samples that an AsyncGRPOTrainer has been given, by their logprobs."""

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
            found = _differences(trainer, given, inputs, outputs[0]["log_probs"].detach())
            if found.numel():
                _judge(trainer, watch, float(found.mean()), float(found.max()))
        return loss

    trainer.compute_loss = compute_loss


def _differences(
    trainer: Any, given: GivenSamples, inputs: Mapping[str, Any], ours: torch.Tensor
) -> torch.Tensor:
    """Returns those of the logprobs of the newest policy's tokens; of the first policy's, before
    TRL's loss knew its samples. Raises `PolicyDiffers`."""
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
