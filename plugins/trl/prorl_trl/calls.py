"""Calls of a GRPOTrainer for rollouts: tried again over failures that can pass, and continued over
restarts of the service.

All processes make a call, and the main one alone talks to the service. Sends no weights by itself.
"""

import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from accelerate.utils import gather_object
from tqdm.auto import tqdm

from prorl_service.client.failures import LostCalls, wait_for_restart
from prorl_service.client.trainers_service import ServiceForgot, TrainersService, run_groups
from prorl_service.schemas import Group, Rollout
from prorl_trl import checks, convert
from prorl_trl.additions import RewardTable
from prorl_trl.convert import GroupMaker, TrlRow
from prorl_trl.draws import TOO_FEW, TrainerDraws
from prorl_trl.pictures import RowPictures
from prorl_trl.processes import on_main
from prorl_trl.pushes import Pushes
from prorl_trl.saved import SavedRun, step_of
from prorl_trl.taken import TakenRows

logger = logging.getLogger(__name__)


class TrainerRollouts:
    """The rollouts of one trainer, from first contact on. Collective throughout."""

    def __init__(
        self,
        trainer: Any,
        service: TrainersService,
        pushes: Pushes,
        saved: SavedRun,
        draws: TrainerDraws | None,
        *,
        is_dynamic: bool,
        groups: GroupMaker,
        row_of: Callable[..., TrlRow],
        raises: bool,
        observe: Callable[[Sequence[Rollout]], None],
    ) -> None:
        """`draws`: None unless a sampler chooses the groups of training steps; `is_dynamic`: those
        that are replayed may be chosen, too. `row_of`: `convert.row_of` without `versions`.
        `raises`: a failed rollout ends training. `observe` gets each attempt's rollouts."""
        self.trainer, self._service, self.pushes, self._saved = trainer, service, pushes, saved
        self._make, self._row_of, self._observe = groups, row_of, observe
        self._calls = LostCalls(raises=raises)
        self._draws, self._is_dynamic = draws, is_dynamic
        self._inflight: tuple[list[Group], dict[str, Rollout]] | None = None
        self._count = 0
        self._rewards = RewardTable(trainer)
        self._taken = TakenRows(trainer, groups.sampling, judges=not saved.is_replayed)
        self._pictures = RowPictures(trainer)
        names = ("response_template", "response_schema")
        self._shows_text = is_dynamic or any(getattr(trainer._tokenizer, one, 0) for one in names)
        self._metrics: dict[str, float] = {}
        self._rows: list[TrlRow] = []
        """This process' rows of the last call."""

    def columns(self, prompts: Sequence[Any]) -> dict[str, list[Any]]:
        """Returns what TRL takes, for the prompts of this process. Raises `RolloutsFailed`."""
        self._rewards.expect_rows()
        self.pushes.push_if_changed()
        rows, self._metrics = self._all_rows(gather_object(prompts))
        start = self.trainer.accelerator.process_index * len(prompts)
        self._rows = rows[start : start + len(prompts)]
        self._taken.expect(self._rows, self.pushes.newest)
        self._pictures.expect(self._rows)
        return convert.columns(self._rows)

    def log(
        self,
        log_metric: Callable[[str, float], None],
        log_extra: Callable[[str, list[Any]], None],
    ) -> None:
        """Logs metrics, and columns of TRL's table of completions.

        TRL decodes each completion with all of its turns. It does not know which rollout it is, or
        why one failed; and it is wrong where a step trains on other prompts than its own, or where
        a response template of the tokenizer's has TRL read the turns as one reply.
        """
        for name, value in self._metrics.items():
            log_metric(name, value)
        if self.trainer.log_completions:
            log_extra("rollout", [row.label for row in self._rows])
            if self._shows_text:
                log_extra("text", [self._text(row) for row in self._rows])

    def _text(self, row: TrlRow) -> str:
        """Returns the text of prompt and completion, special tokens included."""
        if row.failure is not None:
            return ""
        text: str = self.trainer._tokenizer.decode([*row.prompt_ids, *row.completion_ids])
        return text

    def _all_rows(self, prompts: Sequence[Any]) -> tuple[list[TrlRow], dict[str, float]]:
        """Returns all processes' rows, and metrics; gives a restarted service the weights again,
        and continues."""
        self._inflight = None
        deadline = time.monotonic() + self._service.deadline_s
        accelerator = self.trainer.accelerator
        while (outcome := on_main(accelerator, lambda: self._run(prompts, deadline))) is None:
            self.pushes.push_again()
        return outcome

    def _run(
        self, prompts: Sequence[Any], deadline: float
    ) -> tuple[list[TrlRow], dict[str, float]] | None:
        """Retries while all rollouts fail for a temporary reason, such as an engine that is down:
        steps without rollouts would move the learning rate schedule, and with it the policy.

        Returns None if the service was restarted. Raises `RolloutsFailed`.
        """
        rollouts: list[Rollout] = []
        try:
            while True:
                rollouts = self._attempt(prompts, deadline)
                self._observe(rollouts)
                rows = self._rows_of(rollouts, len(prompts))
                failures = [row.failure for row in rows]
                last = -math.inf if self._saved.is_replayed else deadline
                if not self._calls.is_to_retry(failures, last):
                    break
        except ServiceForgot:
            rollouts = []
            wait_for_restart(deadline)
            return None
        finally:
            self._saved.add(step_of(self.trainer), rollouts)
        self._calls.count(failures)
        self._warn_if_empty(rows)
        values = convert.row_metrics(rows, self.pushes.newest)
        if self._draws is not None and self.trainer.model.training:
            values |= self._draws.metrics()
        return convert.with_one_token(rows) if checks.DIVIDES_BY_MASK else rows, values

    def _attempt(self, prompts: Sequence[Any], deadline: float) -> list[Rollout]:
        trainer = self.trainer
        if self._inflight is None:
            self._count += 1
            n = trainer.num_generations if trainer.model.training else trainer.num_generations_eval
            name = f"{self._service.run_id}-{trainer.state.global_step}-{self._count}"
            self._inflight = self._make.groups(prompts, n=n, name=name), {}
        groups, ended = self._inflight
        self._saved.add_tasks(groups)
        if self._saved.is_replayed:
            same = not self._is_drawn
            rollouts = self._saved.next(step_of(trainer), groups, same_tasks=same)
        elif self._is_drawn and self._draws is not None:
            bar = self._bar("informative groups", len(groups))
            rollouts = self._draws.draw(groups, deadline, bar)
        else:
            bar = self._bar("rollouts", len(prompts), len(ended))
            with bar:
                rollouts = run_groups(self._service, groups, ended, deadline, bar.update)
        self._inflight = None
        return rollouts

    @property
    def _is_drawn(self) -> bool:
        return self._is_dynamic and self.trainer.model.training

    def _rows_of(self, rollouts: Sequence[Rollout], count: int) -> list[TrlRow]:
        # Groups of dynamic sampling may have begun before the last push.
        versions = (self.pushes.own if self._is_drawn else self.pushes.current) or None
        rows = [self._row_of(rollout, versions=versions) for rollout in rollouts]
        shortage = self._draws.shortage if self._draws else TOO_FEW
        unused = convert.unused_row(self.trainer._tokenizer.eos_token_id, shortage)
        return rows + [unused] * (count - len(rows))

    def _warn_if_empty(self, rows: Sequence[TrlRow]) -> None:
        if not any(any(row.env_mask) for row in rows):
            logger.warning(
                "this step has nothing to learn from: every rollout failed or, under "
                "overlong='mask', was cut off; continuing with the next. Raise the limits of turns "
                "and tokens, or keep such rollouts with overlong='keep'"
            )

    def _bar(self, what: str, total: int, done: int = 0) -> Any:
        is_off = self.trainer.args.disable_tqdm or None  # None: off unless it is a terminal
        return tqdm(total=total, initial=done, desc=what, leave=False, disable=is_off)
