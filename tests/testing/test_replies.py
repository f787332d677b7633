"""Files of replies, and what a scripted engine does with them."""

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_service.agents.registry import AgentRegistry
from prorl_service.errors import InvalidRequest
from prorl_service.sandbox.base import ToolResult
from prorl_service.schemas import Group, Limits, Message, Rollout, Sampling, Task
from prorl_service.server.settings import SandboxOptions, ServiceSettings
from prorl_service.testing import FakeSandboxes, call, play
from prorl_service.testing.replies import CutReply, Reply, read
from prorl_service.testing.scripted_engine import scripted_engine
from prorl_service.testing.trial import rollouts, trial_service
from tests.parts import trajectory_of
from tests.testing.guess_agent import NUMBER, Guess


def test_texts_are_split_at_separators(tmp_path: Path) -> None:
    file = tmp_path / "replies.txt"
    file.write_text("First,\n\nin two parts.\n---\n\n--- not a separator\n---\n---\nLast.\n---\n")
    assert read(file) == [["First,\n\nin two parts.", "--- not a separator", "", "Last."]]


lines = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1)


@given(st.lists(lines.filter(lambda line: line.rstrip() != "---"), min_size=1))
def test_any_text_survives_its_file(texts: list[str]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "replies.txt"
        file.write_text("\n---\n".join(texts))
        assert read(file) == [texts]


def test_lines_of_json_are_texts_or_messages(tmp_path: Path) -> None:
    file = tmp_path / "replies.jsonl"
    written = call("bash", command="ls")
    file.write_text(f'"Hm."\n\n{written.model_dump_json()}\n{{"content": "Done."}}\n')
    done = Message(role="assistant", content="Done.")
    assert read(file) == [["Hm.", written, done]]


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("replies.txt", "", "holds no replies"),
        ("replies.jsonl", "\n", "holds no replies"),
        ("replies.jsonl", '"a"\n{', "line 2: Expecting property name"),
        ("replies.jsonl", "7", "line 1: a reply is text, or an object"),
        ("replies.jsonl", '{"role": "user", "content": "?"}', "not the user's"),
        ("replies.jsonl", '{"contents": "?"}', "contents: Extra inputs"),
        ("replies.jsonl", '{"rollout_id": "x"}', "line 1: group_id: Field required"),
        ("replies.txt", None, "No such file"),
    ],
)
def test_errors_in_a_file_are_one_line(
    name: str, content: str | None, complaint: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(InvalidRequest, match=complaint) as refused:
        read(tmp_path / name)
    assert "\n" not in refused.value.message


async def test_a_saved_rollout_is_played_again(tmp_path: Path) -> None:
    sampling, limits = Sampling(max_tokens_per_turn=2), Limits(max_turns=3)
    first = await play(Guess, NUMBER, ["50", "755", "6"], sampling=sampling, limits=limits)
    assert [turn.finish_reason for turn in first.turns] == ["length", "length", "stop"]
    file = tmp_path / "rollouts.jsonl"
    file.write_text(f"{first.rollout.model_dump_json()}\n")
    [script] = read(file)
    assert script == [CutReply("50"), CutReply("75"), "6"]
    again = await play(Guess, NUMBER, script, limits=limits)
    assert trajectory_of(again.rollout).segments == trajectory_of(first.rollout).segments
    assert again.prompts == first.prompts


def test_replies_and_rollouts_are_not_mixed(tmp_path: Path) -> None:
    file = tmp_path / "mixed.jsonl"
    rollout = {"group_id": "g", "task_id": "t", "agent": "a", "index": 0, "state": "done"}
    trajectory = {"segments": [], "turns": [], "finish_reason": "finished", "sampling": {}}
    saved = {"rollout_id": "g.0", "created_at": 1.0, "trajectory": trajectory, **rollout}
    file.write_text(f'{json.dumps(saved)}\n"text"\n')
    with pytest.raises(InvalidRequest, match="replies as well as rollouts"):
        read(file)
    file.write_text(json.dumps({**saved, "trajectory": None}))
    with pytest.raises(InvalidRequest, match="has no trajectory"):
        read(file)


async def test_attempts_take_turns_with_the_scripts() -> None:
    assert await rewards([["60"], ["1", "60"]], n=3) == [1.0, 0.5, 1.0]


async def rewards(scripts: list[list[Reply]], n: int) -> list[float | None]:
    agents = AgentRegistry()
    agents.add(Guess, "guess")
    task = Task.model_validate({"task_id": "t", "agent": "guess", **NUMBER})
    group = Group(group_id="g", task=task, n=n)
    settings = ServiceSettings(sandboxes=SandboxOptions(warm_sandboxes=0))
    provider = FakeSandboxes(lambda name, arguments: ToolResult(""))
    ended: dict[int, Rollout] = {}
    async with (
        scripted_engine(scripts) as engine,
        trial_service(agents, [engine.spec], settings, parallel=n, provider=provider) as service,
    ):
        await service.submit([group])
        async for rollout in rollouts(service, group):
            ended[rollout.index] = rollout
    return [ended[index].reward for index in range(n)]
