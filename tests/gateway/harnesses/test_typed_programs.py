"""Programs that want an object, a forced call or a stop text: graded by what they printed."""

from pathlib import Path

import pytest
from pydantic import JsonValue

from prorl_service.agents.registry import AgentRegistry
from prorl_service.client.harness import with_harness
from prorl_service.gateway.harnesses import preset
from prorl_service.sandbox.base import SandboxProvider
from prorl_service.schemas import RolloutState
from prorl_service.testing import Played, Reply, call, play
from tests.gateway.harnesses.scripts import ANSWER, assert_exact, figure, math_task, report

PROGRAMS = Path(__file__).with_name("programs")
SMOLAGENTS = Path(__file__).with_name("smolagents.toml")
OBJECT = '{"text": "It is \\\\boxed{42}."}'

pytestmark = [pytest.mark.processes, pytest.mark.harnesses, pytest.mark.slow]


async def ran(
    program: str,
    replies: list[Reply],
    isolating: SandboxProvider,
    *,
    harness: str = "python",
    **fields: JsonValue,
) -> Played:
    files: JsonValue = {"${home}/agent.py": (PROGRAMS / f"{program}.py").read_text()}
    task = with_harness(math_task(isolating), harness, files=files, **fields)
    run = await play(AgentRegistry()["harness"], task, replies, sandboxes=isolating)
    assert run.rollout.state is RolloutState.DONE, run.rollout.error
    assert ANSWER in str(report(run)["output"])
    assert run.reward == 1.0, report(run)
    assert run.unused_replies == 0
    assert (figure(run, "refused"), figure(run, "errors")) == (0, 0)
    assert_exact(run)
    return run


@pytest.mark.parametrize(
    "model", ["openai-chat:policy", "openai-responses:policy", "anthropic:policy"]
)
async def test_an_agent_of_pydantic_ai_gets_an_object(
    model: str, isolating: SandboxProvider
) -> None:
    """Its object is a call that it forces; a reply in words is asked for again."""
    replies: list[Reply] = ["It is 42.", call("final_result", text=f"It is {ANSWER}.")]
    environment: JsonValue = {"TYPED_MODEL": model}
    run = await ran("pydantic_ai_typed", replies, isolating, environment=environment)
    assert figure(run, "segments") == 1
    assert report(run)["without_effect"] == ["tool_choice"]


async def test_an_agent_of_openai_agents_gets_an_object(isolating: SandboxProvider) -> None:
    replies: list[Reply] = [call("multiply", a=6, b=7), OBJECT]
    run = await ran("openai_agents_typed", replies, isolating)
    assert figure(run, "segments") == 1
    assert {"text", "tool_choice"} <= {*map(str, report(run)["without_effect"] or [])}  # type: ignore[arg-type]


SMOL_CODE = "Thought: multiply.\n<code>\nprint(6 * 7)\n</code>"
SMOL_END = f"Thought: done.\n<code>\nfinal_answer(r'It is {ANSWER}.')\n</code>"


@pytest.mark.parametrize(
    ("program", "replies"),
    [
        (
            "smolagents_tools",
            [call("multiply", a=6, b=7), call("final_answer", answer=f"It is {ANSWER}.")],
        ),
        ("smolagents_code", [f"{SMOL_CODE}\nObservation: 41, I invent.", SMOL_END]),
    ],
)
async def test_an_agent_of_smolagents(
    program: str,
    replies: list[Reply],
    isolating: SandboxProvider,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(preset, "_added", {})
    run = await ran(program, replies, isolating, harness=preset.add(SMOLAGENTS))
    sampled = "".join(turn.text for turn in run.turns)
    assert "I invent" not in sampled
    if program == "smolagents_code":
        assert run.turns[0].text.endswith("print(6 * 7)\n")
