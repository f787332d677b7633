"""Faults of agents: each costs only its own rollout, not its siblings or the service."""

import asyncio
import gc
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import pytest

from prorl_service.agents.base import Prompt, RolloutContext, Verdict
from prorl_service.errors import AgentError
from prorl_service.schemas import Blame, FinishReason, Message, Rollout, RolloutState, Stage, Task
from prorl_service.testing import StubEngine
from tests.parts import error_of, trajectory_of
from tests.pipeline.pipelines import PlainAgent, ends, group_of, pipeline_of


class Greedy(PlainAgent):
    """An agent that removes things from its task and adds things to its prompt."""

    name = "greedy"

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.answer = task.data.pop("answer")
        task.messages.pop()

    def prompt(self) -> Prompt:
        return Prompt([Message(role="user", content="Go.")])

    async def init(self, rollout: RolloutContext) -> None:
        rollout.task.data["seen"] = True

    async def run(self, rollout: RolloutContext) -> FinishReason:
        ids: Any = rollout.prompt_ids
        with suppress(AttributeError):
            ids.append(7)
        await rollout.sample(rollout.prompt_ids)
        return FinishReason.FINISHED

    async def eval(self, rollout: RolloutContext) -> Verdict:
        return Verdict(float(str(self.answer)))


class Ending(PlainAgent):
    """An agent that raises an exception by which programs end, where its task says."""

    name = "ending"
    kinds: ClassVar[dict[str, type[BaseException]]] = {
        "SystemExit": SystemExit,
        "KeyboardInterrupt": KeyboardInterrupt,
        "GeneratorExit": GeneratorExit,
    }

    def prompt(self) -> Prompt:
        self._end_in("prompt")
        return Prompt(self.task.messages)

    async def init(self, rollout: RolloutContext) -> None:
        self._end_in(Stage.INIT)

    async def run(self, rollout: RolloutContext) -> FinishReason:
        await rollout.sample(rollout.prompt_ids)
        self._end_in(Stage.RUN)
        return FinishReason.FINISHED

    async def eval(self, rollout: RolloutContext) -> Verdict:
        if self.task.data.get("where") == "thread":
            await asyncio.to_thread(self._end)
        if self.task.data.get("where") == "task":
            await asyncio.create_task(self._end_in_a_task())
        if self.task.data.get("where") == "task cancelled at once":
            asyncio.create_task(self._end_in_a_task()).cancel()
        self._end_in(Stage.EVAL)
        return Verdict(1.0)

    def _end_in(self, where: str) -> None:
        if self.task.data.get("where") == where:
            self._end()

    async def _end_in_a_task(self) -> NoReturn:
        self._end()

    def _end(self) -> NoReturn:
        raise self.kinds[str(self.task.data["how"])](3)


class Forgetful(PlainAgent):
    """An agent whose constructor fails, except the first time."""

    name = "forgetful"
    made = 0

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        Forgetful.made += 1
        if Forgetful.made > 1:
            raise KeyError("answer")

    async def run(self, rollout: RolloutContext) -> FinishReason:
        raise AssertionError


async def test_siblings_do_not_share_their_task_or_their_prompt(
    engine: StubEngine, tmp_path: Path
) -> None:
    async with pipeline_of([Greedy], engine, tmp_path) as pipeline:
        rollouts = await ends(pipeline, group_of(Greedy, n=4, answer="0.5"))
    assert [rollout.error for rollout in rollouts] == [None] * 4
    assert {rollout.reward for rollout in rollouts} == {0.5}
    prompts = {tuple(prompt_of(rollout)) for rollout in rollouts}
    assert len(prompts) == 1


def prompt_of(rollout: Rollout) -> list[int]:
    return list(trajectory_of(rollout).segments[0].prompt_ids)


async def test_a_constructor_that_fails_is_the_agents_fault(
    engine: StubEngine, tmp_path: Path
) -> None:
    Forgetful.made = 0
    async with pipeline_of([Forgetful], engine, tmp_path) as pipeline:
        (rollout,) = await ends(pipeline, group_of(Forgetful))
    assert (error_of(rollout).blame, error_of(rollout).stage) == (Blame.AGENT, Stage.INIT)
    assert "KeyError: 'answer'" in error_of(rollout).message


@pytest.mark.parametrize("how", list(Ending.kinds))
@pytest.mark.parametrize("where", [*Stage, "thread", "task"])
async def test_an_agent_cannot_end_the_process(
    engine: StubEngine, tmp_path: Path, how: str, where: str
) -> None:
    async with pipeline_of([Ending], engine, tmp_path) as pipeline:
        ending = group_of(Ending, "ending", where=where, how=how)
        ended, whole = await ends(pipeline, ending, group_of(Ending, "whole"))
        assert pipeline.background.failure is None
    assert whole.state is RolloutState.DONE
    assert ended.state is RolloutState.FAILED
    assert error_of(ended).blame is Blame.AGENT
    assert how in error_of(ended).message


@pytest.mark.slow
async def test_a_task_that_is_cancelled_before_it_begins_leaves_no_warning(
    engine: StubEngine, tmp_path: Path
) -> None:
    async with pipeline_of([Ending], engine, tmp_path) as pipeline:
        cancelled = group_of(Ending, where="task cancelled at once", how="SystemExit")
        (ended,) = await ends(pipeline, cancelled)
    gc.collect()  # Python warns when the coroutine is deleted, and pytest makes that an error
    assert ended.state is RolloutState.DONE


async def test_an_agent_cannot_end_the_process_at_submission(
    engine: StubEngine, tmp_path: Path
) -> None:
    async with pipeline_of([Ending], engine, tmp_path) as pipeline:
        with pytest.raises(AgentError, match="SystemExit"):
            await pipeline.submit([group_of(Ending, where="prompt", how="SystemExit")])
        assert pipeline.inflight.count_by_state() == {}
