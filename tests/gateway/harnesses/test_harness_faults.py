"""Real harnesses when something goes wrong: what was sampled is kept, and nothing twice."""

import asyncio
from dataclasses import replace

import pytest

from prorl_service.agents.registry import AgentRegistry
from prorl_service.client.harness import with_harness, with_program
from prorl_service.sandbox.base import SandboxProvider
from prorl_service.schemas import FinishReason, Group, Limits, Rollout, RolloutState, Task
from prorl_service.server.settings import ServiceSettings
from prorl_service.testing import Played
from prorl_service.testing.scripted_engine import ScriptedEngine, scripted_engine
from prorl_service.testing.trial import rollouts, trial_service
from recipes.demo.programs import OPENAI_AGENT
from tests.gateway.harnesses.scripts import ANSWER, BASH, assert_exact, figure, math_task
from tests.sandbox.sandboxes import ISOLATED

pytestmark = [pytest.mark.processes, pytest.mark.harnesses, pytest.mark.slow]

AGENT = OPENAI_AGENT.read_text()
DOWN_S = [15, pytest.param(360, marks=[pytest.mark.on_demand, pytest.mark.timeout(900)])]


async def ended(
    engine: ScriptedEngine, task: Task, sandboxes: SandboxProvider, limits: Limits = Limits()
) -> Played:
    """Returns the only rollout of `task`, at a service that waits for an engine for a day."""
    settings = ServiceSettings()
    settings = replace(
        settings,
        pool=replace(settings.pool, wait_for_backend_s=86400),
        sandboxes=replace(settings.sandboxes, warm_sandboxes=0),
    )
    group = Group(group_id="g", task=task, limits=limits)
    service_of = trial_service(AgentRegistry(), [engine.spec], settings, provider=sandboxes)
    async with service_of as service:
        await service.submit([group])
        [rollout] = [one async for one in rollouts(service, group)]
    return played_by(engine, rollout)


def played_by(engine: ScriptedEngine, rollout: Rollout) -> Played:
    prompt_ids = engine.prompts[rollout.rollout_id]
    prompts = [engine.chat.decode(ids) for ids in prompt_ids]
    return Played(rollout, prompts, prompt_ids, engine.unused_replies(rollout.rollout_id))


async def called(engine: ScriptedEngine, times: int) -> None:
    """Returns once the engine has had so many calls."""
    while engine.calls < times:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("isolating", ISOLATED, indirect=True)
async def test_a_harness_that_is_killed_in_a_call_is_graded_by_what_it_did(
    isolating: SandboxProvider,
) -> None:
    replies = [BASH.call("(sleep 1; kill -9 $PPID) > /dev/null 2>&1 &"), f"It is {ANSWER}."]
    async with scripted_engine([replies]) as engine:
        engine.latency_s = 4
        run = await ended(engine, with_harness(math_task(isolating), "pi"), isolating)
        assert engine.calls == 2
        assert engine.in_flight == 0
    assert run.rollout.state is RolloutState.DONE, run.rollout.error
    assert len(run.turns) == run.unused_replies == 1
    assert run.reward == 0
    assert_exact(run)


async def test_a_call_whose_client_gave_up_is_sampled_once(isolating: SandboxProvider) -> None:
    impatient = AGENT.replace("OpenAI()", "OpenAI(timeout=1, max_retries=9)")
    assert impatient != AGENT
    replies = [BASH.call("echo hello"), f"It is {ANSWER}."]
    async with scripted_engine([replies]) as engine:
        engine.latency_s = 60

        async def hurry() -> None:
            await called(engine, 3)
            engine.latency_s = 0

        task = with_program(math_task(isolating), impatient)
        run, _ = await asyncio.gather(ended(engine, task, isolating), hurry())
        assert engine.calls == 3 + 2
    assert run.reward == 1.0
    assert len(run.turns) == 2
    assert figure(run, "segments") == 1
    assert_exact(run)


@pytest.mark.parametrize("down_s", DOWN_S)
@pytest.mark.parametrize("harness", ["pi", "openai"])
async def test_a_harness_waits_for_an_engine_that_is_down(
    harness: str, down_s: int, isolating: SandboxProvider
) -> None:
    task = math_task(isolating)
    task = with_program(task, AGENT) if harness == "openai" else with_harness(task, harness)
    replies = [BASH.call("echo hello"), BASH.call("echo more"), f"It is {ANSWER}."]
    async with scripted_engine([replies]) as engine:
        engine.latency_s = 0.5

        async def fail() -> None:
            await called(engine, 2)
            engine.status = 503
            await asyncio.sleep(down_s)
            engine.status = 200

        limits = Limits(run_timeout_s=60)
        run, _ = await asyncio.gather(ended(engine, task, isolating, limits), fail())
    assert run.reward == 1.0, run.rollout.error
    assert run.finish_reason is FinishReason.FINISHED
    assert run.unused_replies == 0
    assert [len(run.turns), figure(run, "calls"), figure(run, "segments")] == [3, 3, 1]
    assert_exact(run)
