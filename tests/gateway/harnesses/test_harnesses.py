"""Real harnesses, unmodified, in real sandboxes without a network, against a scripted model."""

import sys
from pathlib import Path

import psutil
import pytest
from pydantic import JsonValue

from prorl_service.agents.registry import AgentRegistry
from prorl_service.client.harness import with_program
from prorl_service.errors import InvalidRequest
from prorl_service.gateway.harnesses import install, store
from prorl_service.sandbox.base import SandboxProvider
from prorl_service.schemas import Blame, FinishReason, Limits, RolloutState
from prorl_service.testing import Played, Reply, call, play
from prorl_service.testing.scripted_engine import CONTEXT_TOKENS
from tests.gateway.harnesses.scripts import (
    ANSWER,
    BASH,
    SHELLS,
    assert_exact,
    bad_calls,
    figure,
    math_task,
    played,
    report,
    work,
)
from tests.parts import error_of
from tests.sandbox.sandboxes import processes_with

PROGRAMS = Path(__file__).with_name("programs")
OPENAI_AGENT = Path(__file__).parents[3] / "recipes/demo/openai_agent.py"

pytestmark = [pytest.mark.processes, pytest.mark.harnesses, pytest.mark.slow]

IN_EACH_RUN = (
    *("pi", "pi_responses", "pi_messages", "claude_code", "claude_code_bare", "codex"),
    *("mini_swe_agent", "mini_swe_agent_text"),
)
ON_DEMAND = ["opencode", "qwen_code"]
if sys.version_info >= (3, 12):  # `make test-harnesses` has an environment with that
    ON_DEMAND.append("openhands")
EVERY = [*IN_EACH_RUN, *(pytest.param(name, marks=pytest.mark.on_demand) for name in ON_DEMAND)]
ASKS_AGAIN = {"mini_swe_agent": 2, "qwen_code": 1}
"""Replies that a harness leaves out and asks for again, of `bad_calls`."""
WITH_TOOLS = [name for name in EVERY if name != "mini_swe_agent_text"]


def own_processes_with(argument: str) -> list[psutil.Process]:
    """Returns live descendants that have `argument`: other tests may run the same programs."""
    found = psutil.Process().children(recursive=True)
    return [one for one in found if one in processes_with(argument)]


def assert_nothing_left(run: Played, harness: str) -> None:
    name = store.find(harness).path.name
    assert not own_processes_with(f"/programs/{name}/")


@pytest.mark.parametrize("harness", EVERY)
@pytest.mark.sampled(9)
async def test_a_harness_does_its_work(harness: str, isolating: SandboxProvider) -> None:
    run = await played(harness, work(harness), isolating)
    assert run.rollout.state is RolloutState.DONE, run.rollout.error
    assert run.reward == 1.0, report(run)
    assert report(run)["exit_code"] == 0
    assert figure(run, "calls") == 5
    assert figure(run, "segments") == 1
    assert run.unused_replies == 0
    assert_exact(run)
    assert_nothing_left(run, harness)
    if harness != "mini_swe_agent_text":
        outputs = [call.output for call in run.turns[1].tool_calls]
        assert ["hello" in outputs[0], "second" in outputs[1]] == [True, True]


@pytest.mark.on_demand
@pytest.mark.timeout(900)
async def test_an_older_version_does_its_work(isolating: SandboxProvider) -> None:
    install.install("pi@0.73.1", lambda _: None)
    run = await played("pi@0.73.1", work("pi"), isolating)
    assert run.reward == 1.0, report(run)
    assert report(run)["version"] == "0.73.1"
    assert figure(run, "segments") == 1
    assert_exact(run)


@pytest.mark.parametrize("harness", WITH_TOOLS)
@pytest.mark.sampled(5)
async def test_broken_calls_reach_the_harness(harness: str, isolating: SandboxProvider) -> None:
    run = await played(harness, bad_calls(harness), isolating)
    assert run.reward == 1.0, report(run)
    assert run.turns[0].format_error is not None
    assert_exact(run)
    assert figure(run, "broken_calls") >= 1
    left_out = ASKS_AGAIN.get(harness, 0)
    assert figure(run, "segments") == 1 + left_out
    assert figure(run, "abandoned") == left_out
    assert [turn.is_abandoned for turn in run.turns].count(True) == left_out
    trajectory = run.rollout.trajectory
    assert trajectory is not None
    assert {segment.kind for segment in trajectory.segments} == {"main"}


@pytest.mark.parametrize("harness", ["pi", "claude_code_bare", "codex"])
@pytest.mark.sampled(3)
async def test_a_policy_that_never_stops_is_stopped(
    harness: str, isolating: SandboxProvider
) -> None:
    replies = [SHELLS[harness].call(f"echo {number}") for number in range(20)]
    run = await played(harness, replies, isolating, limits=Limits(max_turns=7))
    assert run.rollout.state is RolloutState.DONE
    assert run.finish_reason is FinishReason.MAX_TURNS
    assert len(run.turns) == 7
    assert_exact(run)
    assert_nothing_left(run, harness)


async def test_commands_end_with_the_budget(isolating: SandboxProvider) -> None:
    hang = SHELLS["pi"].call("trap '' TERM INT; sleep 7251")
    run = await played("pi", [hang, "never"], isolating, limits=Limits(run_timeout_s=8))
    assert run.finish_reason is FinishReason.TIMEOUT
    assert len(run.turns) == 1
    assert not own_processes_with("7251")
    assert_nothing_left(run, "pi")


async def test_a_harness_that_is_not_installed_is_refused(isolating: SandboxProvider) -> None:
    with pytest.raises(InvalidRequest, match=r"the harness pi 0\.0\.1 is not installed") as refused:
        await played("pi", [], isolating, version="0.0.1")
    assert refused.value.hint == "run `prorl harnesses install pi@0.0.1`"


async def test_a_first_request_that_the_model_cannot_take_is_the_tasks_fault(
    isolating: SandboxProvider,
) -> None:
    content = f"'x' * {CONTEXT_TOKENS}"
    program = (
        "import openai\n"
        "create = openai.OpenAI(max_retries=0).chat.completions.create\n"
        f"create(model='policy', messages=[{{'role': 'user', 'content': {content}}}])\n"
    )
    task = with_program(math_task(isolating), program)
    run = await play(AgentRegistry()["harness"], task, ["never"], sandboxes=isolating)
    error = run.rollout.error
    assert error is not None
    assert error.blame is Blame.TASK
    assert f"longer than the model's context of {CONTEXT_TOKENS} tokens" in error.message


async def test_a_program_that_never_asks_is_an_error_with_its_output(
    isolating: SandboxProvider,
) -> None:
    command: list[JsonValue] = ["sh", "-c", "echo out of order; exit 3"]
    run = await played(None, [], isolating, command=command)
    message = "sh ended with code 3 and never asked the policy: out of order"
    assert message in error_of(run.rollout).message


@pytest.mark.parametrize("sdk", ["openai", "openai_agents", "pydantic_ai", "anthropic"])
@pytest.mark.sampled(4)
async def test_a_program_of_ones_own(sdk: str, isolating: SandboxProvider) -> None:
    file = OPENAI_AGENT if sdk == "openai" else PROGRAMS / f"{sdk}.py"
    task = with_program(math_task(isolating), file.read_text())
    replies = [BASH.call("echo hello > a.txt"), BASH.call("cat a.txt"), f"It is {ANSWER}."]
    run = await play(AgentRegistry()["harness"], task, replies, sandboxes=isolating)
    assert run.rollout.state is RolloutState.DONE, run.rollout.error
    assert run.reward == 1.0, report(run)
    assert figure(run, "segments") == 1
    assert [len(turn.tool_calls) for turn in run.turns] == [1, 1, 0]
    assert "hello" in run.outputs[1]
    assert_exact(run)


async def test_an_agent_that_hands_over_is_graded_by_what_it_printed(
    isolating: SandboxProvider,
) -> None:
    """Tools and system prompt change at the hand-over, the system prompt at every call."""
    task = with_program(math_task(isolating), (PROGRAMS / "openai_agents_handoff.py").read_text())
    replies: list[Reply] = [
        call("transfer_to_solver"),
        BASH.call("echo hello"),
        f"It is {ANSWER}.",
    ]
    run = await play(AgentRegistry()["harness"], task, replies, sandboxes=isolating)
    assert run.rollout.state is RolloutState.DONE, run.rollout.error
    assert ANSWER in str(report(run)["output"])
    assert run.reward == 1.0, report(run)
    assert figure(run, "answer_unsure") == 0
    assert_exact(run)


@pytest.mark.parametrize(
    ("then", "said"),
    [
        ("raise MemoryError('no room')", ["ended with code 1: ", "MemoryError: no room"]),
        (
            "create(**asked, n=2)",
            ["after the gateway refused a request (n: one reply a call; ask again for another)"],
        ),
    ],
)
async def test_a_program_that_fails_is_an_error_of_the_agent(
    then: str, said: list[str], isolating: SandboxProvider
) -> None:
    program = f"""
import openai
create = openai.OpenAI(max_retries=0).chat.completions.create
asked = {{"model": "policy", "messages": [{{"role": "user", "content": "Go."}}]}}
create(**asked)
{then}
"""
    task = with_program(math_task(isolating), program)
    run = await play(AgentRegistry()["harness"], task, ["Wrong."], sandboxes=isolating)
    assert error_of(run.rollout).blame is Blame.AGENT
    assert all(one in error_of(run.rollout).message for one in said)


@pytest.mark.parametrize("is_cut", [False, True])
async def test_a_program_that_gives_up_at_a_cut_reply_ran_out_of_length(
    is_cut: bool, isolating: SandboxProvider
) -> None:
    program = f"""
import openai
create = openai.OpenAI(max_retries=0).chat.completions.create
asked = {{"model": "policy", "messages": [{{"role": "user", "content": "Go."}}]}}
create(**asked, max_tokens={2 if is_cut else 200})
raise SystemExit("the reply was cut")
"""
    task = with_program(math_task(isolating), program)
    replies = ["A reply of more than two tokens."]
    run = await play(AgentRegistry()["harness"], task, replies, sandboxes=isolating)
    assert run.rollout.state is (RolloutState.DONE if is_cut else RolloutState.FAILED)
    if is_cut:
        assert run.finish_reason is FinishReason.LENGTH
        assert run.reward == 0.0
