"""What the plug-in adds to a GRPOTrainer: a table of rewards that leaves failed rollouts out, the
correction for engines that TRL does not drive, and work at the end.

`checks` guards the attributes of TRL that are used. `taken` adds the comparison of the loss.
"""

from typing import Any

import torch
from transformers import TrainerCallback

from prorl_service.client.policy import HeldPolicy
from prorl_service.client.trainers_service import TrainersService
from prorl_trl import checks
from prorl_trl.draws import TrainerDraws
from prorl_trl.saved import SavedRun


class RewardTable:
    """Wrapper of a trainer's `_calculate_rewards`: rows whose rollout has no reward are not scored,
    whatever reward functions return.

    TRL leaves a row out of baseline, deviation and logged reward if all of its rewards are NaN.
    Reward functions and models return a number for any text, the token that stands for a failed
    rollout too. So their numbers about such rows are replaced after all of them, in the table of
    all processes.
    """

    def __init__(self, trainer: Any) -> None:
        """Raises `RuntimeError` for a TRL that computes rewards elsewhere."""
        checks.check_hooks("leave failed rollouts out of the baseline")
        self._trainer = trainer
        self._calculate = trainer._calculate_rewards
        self._unscored_at: int | None = None
        trainer._calculate_rewards = self._calculate_scorable

    def expect_rows(self) -> None:
        """Notes that the trainer gets rows now. Raises `RuntimeError` if it trained on those before
        without this table."""
        step, before = self._trainer.state.global_step, self._unscored_at
        if before is not None and step > before:
            raise RuntimeError(
                f"{type(self._trainer).__name__} trained on rows without `_calculate_rewards` of "
                "GRPOTrainer, so that failed rollouts got rewards: call it in your subclass"
            )
        self._unscored_at = step

    def _calculate_scorable(self, inputs: list[dict[str, Any]], *rest: Any) -> torch.Tensor:
        """Returns the rewards of all processes' rows, in float32[rows, functions]."""
        rewards: torch.Tensor = self._calculate(inputs, *rest)
        is_failed = torch.tensor(
            [row["prorl_reward"] is None for row in inputs], device=rewards.device
        )
        is_failed = self._trainer.accelerator.gather(is_failed)
        self._unscored_at = None
        return rewards.masked_fill(is_failed.unsqueeze(1), torch.nan)


class _WeightsArePushed:
    """Stand-in for TRL's vLLM engine, which answers the one call that TRL makes to it."""

    def sync_weights(self) -> None: ...


def correct_sampling(trainer: Any) -> None:
    """Has TRL correct for the difference between the engine's logprobs and its own, which it does
    only when it believes that it drives vLLM. Raises `RuntimeError` for a TRL that reads other
    attributes."""
    checks.check_hooks(
        "correct for the engine's logprobs",
        ", or train without it: `ProRLRollout(importance_sampling='off')`",
    )
    trainer.use_vllm = True
    trainer.vllm_generation = _WeightsArePushed()
    trainer._last_loaded_step = trainer.state.global_step


class OnMain(TrainerCallback):  # type: ignore[misc]
    """Work on the main process, when an evaluation is over and when training ends."""

    def __init__(
        self, saved: SavedRun, draws: TrainerDraws | None, service: TrainersService
    ) -> None:
        self._saved, self._draws, self._service = saved, draws, service

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            self._saved.end_evaluation()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            if self._draws is not None:
                self._draws.end()
            self._service.release()


class StepReports(TrainerCallback):  # type: ignore[misc]
    """Reports to the service of what the trainer logs, at each step that it logs."""

    def __init__(self, training: TrainersService | HeldPolicy) -> None:
        self._training = training

    def on_log(self, args: Any, state: Any, control: Any, logs: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            self._training.report(state.global_step, logs)
