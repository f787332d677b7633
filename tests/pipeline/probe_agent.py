"""An agent that does in each stage what its task says, and a pipeline that runs it."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from prorl_service.agents.base import RolloutContext, Verdict
from prorl_service.errors import EvaluatorError, TaskError
from prorl_service.inference.pool import PoolConfig
from prorl_service.pipeline.config import PipelineConfig
from prorl_service.pipeline.pipeline import Pipeline
from prorl_service.rollouts.journal.tables import Retention
from prorl_service.schemas import FinishReason, Group, Limits, Stage
from prorl_service.testing import FakeSandboxes, StubEngine
from tests.pipeline.pipelines import PlainAgent, group_of, pipeline_of


class Probe(PlainAgent):
    """An agent that in each stage passes, fails in some way or hangs, as `task.data` says."""

    name = "probe"
    started: asyncio.Event

    async def init(self, rollout: RolloutContext) -> None:
        await rollout.open_sandbox()
        await self._act(Stage.INIT)

    async def run(self, rollout: RolloutContext) -> FinishReason:
        await rollout.sample(rollout.prompt_ids)
        await self._act(Stage.RUN)
        if self.task.data.get(Stage.RUN) == "no reason":
            return None  # type: ignore[return-value]
        return FinishReason.FINISHED

    async def eval(self, rollout: RolloutContext) -> Verdict:
        await rollout.open_sandbox()
        await self._act(Stage.EVAL)
        match self.task.data.get(Stage.EVAL):
            case "nan":
                return Verdict(math.nan)
            case "float":
                return 1.0  # type: ignore[return-value]
            case "no such turn":
                return Verdict(1.0, turn_rewards={0: 0.5, 1: 0.5})
            case "key":
                return Verdict(1.0, {1: 1.0})  # type: ignore[dict-item]
            case "surrogate":
                raise EvaluatorError("\ud800")
            case "sample":
                await rollout.sample(rollout.prompt_ids)
        return Verdict(1.0)

    async def _act(self, stage: Stage) -> None:
        match self.task.data.get(stage):
            case "hang":
                Probe.started.set()
                await asyncio.Event().wait()
            case "bug":
                raise KeyError("oops")
            case "task":
                raise TaskError("no such file")
            case "evaluator":
                raise EvaluatorError("no verdict")
            case "cancel":
                helper = asyncio.ensure_future(asyncio.Event().wait())
                helper.cancel()
                await helper
            case "stubborn":
                Probe.started.set()
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
                raise KeyError("and something else instead")


Start = Callable[..., AbstractAsyncContextManager[Pipeline]]


@asynccontextmanager
async def running(
    engine: StubEngine,
    sandboxes: FakeSandboxes,
    spool: Path,
    config: PipelineConfig = PipelineConfig(),
    retention: Retention = Retention(),
    max_unfinished: int = 50_000,
) -> AsyncIterator[Pipeline]:
    Probe.started = asyncio.Event()
    async with pipeline_of(
        [Probe],
        engine,
        spool,
        config,
        PoolConfig(wait_for_backend_s=20),
        retention=retention,
        sandboxes=sandboxes,
        max_unfinished=max_unfinished,
    ) as pipeline:
        yield pipeline


def group(
    group_id: str = "g", n: int = 1, limits: Limits = Limits(), acts: dict[Stage, str] | None = None
) -> Group:
    return group_of(Probe, group_id, n, limits, **(acts or {}))
