"""The STEM agent over HTTP: real sandboxes, a real MCP server, a judge and a scripted engine."""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from prorl_service.client import AsyncRolloutClient, ServiceCallError
from prorl_service.net import chat_model
from prorl_service.rewards.judge.judge import JudgeConfig
from prorl_service.schemas import (
    BackendSpec,
    Blame,
    Group,
    Limits,
    Rollout,
    RolloutState,
)
from prorl_service.testing import StubEngine, StubJudge
from prorl_service.tokens.chat import ChatFormat
from prorl_service.tools.remote import MAX_OUTPUT_BYTES
from prorl_service.tools.spec import McpSpec
from tests import builders
from tests.server.application import Settings, finished, serving
from tests.tools.mcp_processes import COMMAND

pytestmark = pytest.mark.processes

QUESTION = "What is the melting point of unobtainium, in degrees Celsius?"
CORPUS = {"id": "un", "title": "Unobtainium", "text": "Unobtainium melts at 1473.15 K."}


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def plays(chat: ChatFormat, reply: Callable[[list[str]], str]) -> Callable[[list[int]], list[int]]:
    """Returns the answers of an engine that replies to the outputs of the tools so far."""

    def answer(prompt: list[int]) -> list[int]:
        outputs = re.findall(
            r"<tool_response>\n(.*?)\n</tool_response>", chat.decode(prompt), re.DOTALL
        )
        return [*chat.encode(reply(outputs)), chat.end_of_turn_id]

    return answer


def looks_up_and_computes(outputs: list[str]) -> str:
    match len(outputs):
        case 0:
            return call("search", query="melting point of unobtainium")
        case 1:
            kelvin = re.findall(r"melts at ([\d.]+) K", outputs[0])[0]
            return call("ipython", code=f"round({kelvin} - 273.15, 2)")
        case _:
            return f"It is \\boxed{{{outputs[1]}}}."


@pytest.fixture
def corpus(tmp_path: Path) -> McpSpec:
    file = tmp_path / "corpus.jsonl"
    file.write_text(json.dumps(CORPUS))
    return McpSpec(
        "corpus", f"{sys.executable} -m recipes.math_code.corpus_server {file}", ("search",)
    )


@asynccontextmanager
async def stem_service(
    tiny_model: Path, answer: Callable[[list[int]], list[int]], **settings: Any
) -> AsyncIterator[AsyncRolloutClient]:
    async with StubEngine(tiny_model, answer, max_model_len=2**17) as engine:
        backends = (BackendSpec(url=engine.url),)
        configured = Settings(backends=backends, sandbox="bubblewrap", **settings)
        async with serving(configured) as url, AsyncRolloutClient(url) as client:
            yield client


def stem(name: str, n: int = 1, limits: Limits | None = None, **data: Any) -> Group:
    task = builders.task("melting", QUESTION, agent="stem", data={"answer": "1200", **data})
    return Group(group_id=name, task=task, n=n, limits=limits or Limits())


def outputs(rollout: Rollout) -> list[str]:
    assert rollout.trajectory is not None
    return [call.output for turn in rollout.trajectory.turns for call in turn.tool_calls]


async def test_the_agent_searches_computes_and_answers(
    tiny_model: Path, chat: ChatFormat, corpus: McpSpec
) -> None:
    answer = plays(chat, looks_up_and_computes)
    async with stem_service(tiny_model, answer, mcp=(corpus,)) as client:
        rollouts = await finished(client, stem("g", n=3, mcp=["corpus"]))
    for rollout in rollouts:
        assert rollout.state is RolloutState.DONE, rollout.error
        assert outputs(rollout) == ["[un] Unobtainium\nUnobtainium melts at 1473.15 K.", "1200.0"]
        assert rollout.reward == 1.0
        assert rollout.reward_components == {
            "correct": 1.0,
            "answered": 1.0,
            "by_text": 0.0,
            "by_value": 1.0,
            "by_judge": 0.0,
            "judge_disagreed": 0.0,
            "scoring_failed": 0.0,
        }
        assert rollout.trajectory is not None
        prompt = chat.decode(rollout.trajectory.segments[0].prompt_ids)
        assert '"name": "search"' in prompt
        assert "Words to look for." in prompt
        assert '"name": "fetch"' not in prompt


async def test_choices_are_scored_by_the_letter_in_the_box(
    tiny_model: Path, chat: ChatFormat
) -> None:
    replies = iter(["\\boxed{B}", "\\boxed{\\text{B: high}}", "\\boxed{A}", "It is B."])
    data: dict[str, Any] = {"answer": "B", "options": {"A": "low", "B": "high"}}
    async with stem_service(tiny_model, plays(chat, lambda outputs: next(replies))) as client:
        rewards = [(await finished(client, stem(f"g{n}", **data)))[0].reward for n in range(4)]
    assert rewards == [1.0, 1.0, 0.0, 0.0]


async def test_a_model_that_never_answers_is_wrong(tiny_model: Path, chat: ChatFormat) -> None:
    answer = plays(chat, lambda outputs: call("bash", command="echo '\\boxed{1200}'"))
    async with stem_service(tiny_model, answer) as client:
        (rollout,) = await finished(client, stem("g", limits=Limits(max_turns=2)))
    assert (rollout.state, rollout.reward) == (RolloutState.DONE, 0.0)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"mcp": ["web"]}, "no MCP server 'web'"),
    ({"mcp": ["corpus", "corpus"]}, "2 tools are called 'search'"),
    ({"mcp": "http://elsewhere"}, r"data\.mcp: Input should be a valid list"),
    ({"judge": True}, "needs a judge"),
    ({"answer": "C", "options": {"A": "a", "B": "b"}}, "not the letter of an option"),
    ({"answer": "A", "options": {"A": "a"}}, "at least two"),
    ({"answer": "a", "options": {"a": "a", "b": "b"}}, "capital letters"),
    ({"answer": "A", "options": {"A": "", "B": ""}, "judge": True}, "without options"),
    ({"answer": "A", "options": {"A": "", "B": ""}, "answer_pattern": "("}, "not a regular expres"),
    ({"answer_pattern": "[A-Z]"}, "for questions with options"),
]


async def test_tasks_that_cannot_run_are_refused(
    tiny_model: Path, chat: ChatFormat, corpus: McpSpec
) -> None:
    answer = plays(chat, looks_up_and_computes)
    async with stem_service(tiny_model, answer, mcp=(corpus,)) as client:
        for data, problem in REFUSED:
            with pytest.raises(ServiceCallError, match=f"422 InvalidRequest: .*{problem}"):
                await client.submit([stem("g", **data)])


async def test_a_rollout_survives_the_death_of_its_server(
    tiny_model: Path, chat: ChatFormat, corpus: McpSpec
) -> None:
    """`search` is read-only, so that the call is made again and the rollout does not notice."""

    def kill_first(outputs: list[str]) -> str:
        if not outputs:
            for child in psutil.Process().children():
                if "recipes.math_code.corpus_server" in child.cmdline():
                    child.kill()
        return looks_up_and_computes(outputs)

    async with stem_service(tiny_model, plays(chat, kill_first), mcp=(corpus,)) as client:
        (rollout,) = await finished(client, stem("g", mcp=["corpus"]))
        assert (rollout.state, rollout.reward) == (RolloutState.DONE, 1.0), rollout.error


async def test_a_server_that_stays_away_fails_the_rollout(
    tiny_model: Path, chat: ChatFormat, corpus: McpSpec, tmp_path: Path
) -> None:
    def remove_first(outputs: list[str]) -> str:
        (tmp_path / "corpus.jsonl").unlink(missing_ok=True)
        for child in psutil.Process().children():
            if "recipes.math_code.corpus_server" in child.cmdline():
                child.kill()
        return looks_up_and_computes(outputs)

    async with stem_service(tiny_model, plays(chat, remove_first), mcp=(corpus,)) as client:
        limits = Limits(tool_timeout_s=1)
        (rollout,) = await finished(client, stem("g", limits=limits, mcp=["corpus"]))
    assert rollout.state is RolloutState.FAILED
    assert rollout.reward is None
    assert rollout.error is not None
    assert (rollout.error.kind, rollout.error.blame) == ("ToolServerError", Blame.SERVICE)
    assert rollout.error.retryable


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Log of the misbehaving server."""
    monkeypatch.setenv("MCP_TEST_LOG", str(tmp_path / "log"))
    return tmp_path / "log"


async def test_a_rollout_continues_whatever_its_server_answers(
    tiny_model: Path, chat: ChatFormat, log: Path
) -> None:
    replies = iter(
        [
            call("repeat", text="x", times=2**21),
            call("sleep", seconds=3600),
            call("die"),
            "\\boxed{1200}",
        ]
    )
    answer = plays(chat, lambda outputs: next(replies))
    tools = ("repeat", "sleep", "die")
    async with stem_service(tiny_model, answer, mcp=(McpSpec("mis", COMMAND, tools),)) as client:
        limits = Limits(tool_timeout_s=5)
        (rollout,) = await finished(client, stem("g", limits=limits, mcp=["mis"]))
    assert (rollout.state, rollout.reward) == (RolloutState.DONE, 1.0), rollout.error
    flood, hung, died = outputs(rollout)
    assert f"[... {2**21 - MAX_OUTPUT_BYTES} bytes omitted ...]" in flood
    assert hung == "[timed out after 5 s]"
    assert died == "die failed: Connection closed"
    seen = await asyncio.to_thread(log.read_text)
    assert seen.splitlines()[1:4] == ["sleeping", "cancelled", "dying"]


async def test_a_cancelled_rollout_cancels_its_call(
    tiny_model: Path, chat: ChatFormat, log: Path
) -> None:
    sleeper = McpSpec("sleeper", COMMAND, ("sleep",))
    answer = plays(chat, lambda outputs: call("sleep", seconds=3600))

    async def until_noted(line: str) -> None:
        while line not in await asyncio.to_thread(log.read_text):  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async with stem_service(tiny_model, answer, mcp=(sleeper,)) as client:
        group = stem("g", mcp=["sleeper"])
        await client.submit([group])
        await until_noted("sleeping")
        (rollout,) = await client.cancel(group.rollout_ids())
        assert rollout.state is RolloutState.CANCELLED
        await until_noted("cancelled")


# --- the judge ----------------------------------------------------------------------------------


def judged(name: str) -> Group:
    return stem(name, answer="twelve hundred degrees", judge=True)


async def test_a_miss_is_judged_and_siblings_cost_one_judgement(
    tiny_model: Path, chat: ChatFormat
) -> None:
    answer = plays(chat, lambda outputs: "\\boxed{1200 C}")
    async with StubJudge(lambda messages: "VERDICT: SAME") as judge:
        config = JudgeConfig(judge.url, ["a-model"])
        async with stem_service(tiny_model, answer, judge=config) as client:
            group = judged("g")
            group.n = 4
            rollouts = await finished(client, group)
            matched = await finished(client, stem("h", answer="1200 C", judge=True))
            unjudged = await finished(client, stem("i", answer="twelve hundred degrees"))
    assert [rollout.reward for rollout in rollouts] == [1.0] * 4
    assert rollouts[0].reward_components["by_judge"] == 1.0
    assert [matched[0].reward, unjudged[0].reward] == [1.0, 0.0]
    assert len(judge.requests) == 2
    assert QUESTION in judge.requests[0]["messages"][1]["content"]


@pytest.mark.parametrize(
    ("says", "reply", "reward"),
    [
        ("\\boxed{1200 C}", "VERDICT: DIFFERENT", 0.0),
        ("\\boxed{1200 C}", "I cannot say.", None),
        ("\\boxed{1200 C}", "", None),
        ("It is 1200 C.", "VERDICT: SAME", 0.0),
    ],
)
async def test_only_a_verdict_is_a_reward_and_only_a_boxed_answer_is_judged(
    tiny_model: Path,
    chat: ChatFormat,
    monkeypatch: pytest.MonkeyPatch,
    says: str,
    reply: str,
    reward: float | None,
) -> None:
    monkeypatch.setattr(chat_model, "FIRST_DELAY_S", 0.0)
    answer = plays(chat, lambda outputs: says)
    async with StubJudge(lambda messages: reply) as judge:
        config = JudgeConfig(judge.url, ["a-model"])
        async with stem_service(tiny_model, answer, judge=config) as client:
            (rollout,) = await finished(client, judged("g"))
    assert rollout.reward == reward
    is_boxed = "boxed" in says
    assert bool(judge.requests) is is_boxed
    if reward is None:
        assert rollout.state is RolloutState.FAILED
        assert rollout.error is not None
        assert (rollout.error.blame, rollout.error.retryable) == (Blame.EVALUATOR, True)
        assert rollout.trajectory is not None
    else:
        assert rollout.reward_components["judge_disagreed"] == 0.0
        assert rollout.reward_components["answered"] == is_boxed
