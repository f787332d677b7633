"""`play`, as authors of agents call it."""

import asyncio
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from prorl_service.agents.math import MathAgent
from prorl_service.errors import InvalidRequest
from prorl_service.sandbox.base import ToolResult
from prorl_service.schemas import (
    Blame,
    FinishReason,
    Limits,
    RolloutState,
    Sampling,
    Stage,
)
from prorl_service.testing import FakeSandboxes, Reply, call, play
from tests import builders
from tests.parts import error_of, trajectory_of
from tests.testing.guess_agent import NUMBER, Guess

QUESTION = {"messages": [{"role": "user", "content": "What is 17 * 3?"}], "data": {"answer": "51"}}


@pytest.mark.processes
async def test_an_agent_is_played_with_real_tools_and_real_scoring() -> None:
    replies: list[Reply] = [call("bash", command="echo $((17*3))"), r"\boxed{51}"]
    played = await play(MathAgent, QUESTION, replies)
    assert (played.outputs, played.reward) == (["51"], 1.0)
    assert played.finish_reason is FinishReason.FINISHED
    assert [turn.tool_calls[0].name for turn in played.turns[:1]] == ["bash"]
    assert played.rollout.reward_components["well_formed"] == 1.0
    assert played.unused_replies == 0


async def test_prompts_are_what_the_model_sees() -> None:
    played = await play(Guess, NUMBER, ["50", "75", "60"])
    first, second, third = played.prompts
    assert first == "<|im_start|>user\nGuess.<|im_end|>\n<|im_start|>assistant\n"
    assert second.startswith(f"{first}50<|im_end|>\n<|im_start|>user\nhigher<|im_end|>")
    assert third.startswith(f"{second}75<|im_end|>\n<|im_start|>user\nlower<|im_end|>")
    assert played.rollout.report == {"guesses": 3}


async def test_a_failing_agent_makes_a_failed_rollout_that_says_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    played = await play(Guess, NUMBER, ["fifty"])
    error = played.rollout.error
    assert error is not None
    assert (error.blame, error.stage, error.kind) == (Blame.AGENT, Stage.RUN, "ValueError")
    with pytest.raises(AssertionError, match="failed in RUN, blame agent: ValueError: invalid"):
        _ = played.reward
    assert played.turns[0].text == "fifty"
    assert "guess = int(" in caplog.text  # the traceback, which pytest shows of a failed test


async def test_a_script_that_is_too_short_or_too_long_is_reported() -> None:
    short = await play(Guess, NUMBER, ["50"])
    assert "the agent asks for another reply after 1 reply" in error_of(short.rollout).message
    assert short.rollout.attempt == 1
    long = await play(Guess, NUMBER, ["60", "61", "62"])
    assert (long.reward, long.unused_replies) == (1.0, 2)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("task", "complaint"),
    [
        ({**QUESTION, "data": {}}, r"data\.answer: "),
        ({**QUESTION, "image": "debian:12"}, "image: "),
    ],
)
async def test_a_task_that_the_agent_does_not_take_is_refused(
    task: Mapping[str, Any], complaint: str
) -> None:
    with pytest.raises(InvalidRequest, match=complaint):
        await play(MathAgent, task, ["51"], sandboxes="bubblewrap")


@pytest.mark.processes
async def test_sandboxes_may_be_fake() -> None:
    sandboxes = FakeSandboxes(lambda name, arguments: ToolResult(f"{name} {arguments['command']}"))
    task = builders.task(agent="another", data={"answer": "51", "files": {"notes": "51"}})
    replies: list[Reply] = [call("bash", command="cat notes"), r"\boxed{51}"]
    played = await play(MathAgent, task, replies, sandboxes=sandboxes)
    assert (played.outputs, played.reward) == (["bash cat notes"], 1.0)
    [sandbox] = sandboxes.made
    assert sandbox.files == {"notes": b"51"}
    assert not sandbox.running


async def test_limits_and_sampling_are_the_rollouts() -> None:
    played = await play(Guess, NUMBER, ["1", "2", "3"], limits=Limits(max_turns=2))
    assert (played.finish_reason, len(played.turns)) == (FinishReason.MAX_TURNS, 2)
    sampling = Sampling(max_tokens_per_turn=1, temperature=0.5)
    cut = await play(Guess, NUMBER, ["60"], sampling=sampling, limits=Limits(max_turns=1))
    assert (cut.turns[0].text, cut.turns[0].finish_reason) == ("6", "length")
    assert trajectory_of(cut.rollout).sampling == sampling


@pytest.mark.processes
async def test_a_models_own_template_and_tokens_are_used(tiny_model: Path) -> None:
    calls = [{"function": {"name": "bash", "arguments": {"command": "echo 51"}}}]
    replies: list[dict[str, Any] | str] = [{"tool_calls": calls}, r"\boxed{51}"]
    played = await play(MathAgent, QUESTION, replies, tokenizer=tiny_model, sandboxes="process")
    assert played.reward == 1.0
    in_bytes = sum(len(prompt.encode()) for prompt in played.prompts[:1])
    assert len(trajectory_of(played.rollout).segments[0].prompt_ids) < in_bytes


async def test_a_hanging_agent_is_timed_out() -> None:
    class Sleeper(Guess):
        name = "sleeper"

        async def init(self, rollout: Any) -> None:
            await asyncio.Event().wait()

    played = await play(Sleeper, NUMBER, ["60"], limits=Limits(init_timeout_s=0.1))
    assert played.rollout.state is RolloutState.FAILED
    assert played.turns == []
    assert (played.finish_reason, played.prompts) == (None, [])


async def test_a_name_that_another_agent_has_is_refused() -> None:
    class Imitator(Guess):
        name = "math"

    with pytest.raises(InvalidRequest, match="named 'math'"):
        await play(Imitator, NUMBER, [])


@pytest.mark.processes
def test_fakes_do_not_import_the_service() -> None:
    program = (
        "import prorl_service.testing, sys\n"
        "sys.exit('prorl_service.server.compose' in sys.modules or 'torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
