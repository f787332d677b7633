"""RUN and EVAL without workers of their own: the worker that did INIT takes a rollout through all.

No READY queue, so INIT does not work ahead of RUN, and a slot is held until the verdict.
"""

from typing import Any

from prorl_service.pipeline.stage import StagePool
from prorl_service.rollouts.record import RolloutRecord


class InTurn(StagePool):
    """A stage of which the worker of the stage before does the work. Takes the arguments of
    `StagePool`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{**options, "workers": 0})

    async def _queued(self, record: RolloutRecord) -> None:
        await self._take(record)
