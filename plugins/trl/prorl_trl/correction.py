"""Importance-sampling correction for rollouts of engines that TRL does not drive.

TRL corrects for the difference between the engine's logprobs and its own only when it believes that
it drives vLLM. Three attributes make it believe so; `checks` guards them.
"""

from typing import Any

from prorl_trl import checks


class _WeightsArePushed:
    """Stand-in for TRL's vLLM engine, which answers the one call that TRL makes to it."""

    def sync_weights(self) -> None: ...


def correct_sampling(trainer: Any) -> None:
    """Raises `RuntimeError` for a TRL that reads other attributes."""
    checks.check_hooks(
        "correct for the engine's logprobs",
        ", or train without it: `ProRLRollout(importance_sampling='off')`",
    )
    trainer.use_vllm = True
    trainer.vllm_generation = _WeightsArePushed()
    trainer._last_loaded_step = trainer.state.global_step
