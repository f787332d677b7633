"""Sources of rollouts: files, directories, journals in use or at rest."""

import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest

from prorl_service.client import AsyncRolloutClient
from prorl_service.client.saved import SavedStep, StepFiles
from prorl_service.errors import ProRLError
from prorl_service.exports.sources import records
from prorl_service.schemas import BackendSpec, Rollout, Rollouts
from prorl_service.schemas.arrays import PACKED
from prorl_service.testing import StubEngine
from prorl_service.tokens.chat import ChatFormat
from tests.exports.made_rollouts import AGENTS, Answers, Made, groups
from tests.server.application import Settings, serving

pytestmark = pytest.mark.processes


def read(*sources: Path | str) -> list[Rollout]:
    return [one.rollout for one in records([str(source) for source in sources])]


def lines(rollouts: Sequence[Rollout]) -> str:
    return "".join(one.model_dump_json() + "\n" for one in rollouts)


def problem(*sources: Path | str) -> str:
    with pytest.raises(ProRLError) as refused:
        read(*sources)
    assert "\n" not in refused.value.message
    return refused.value.message


def test_a_file_has_a_rollout_a_line(made: Made, tmp_path: Path) -> None:
    some = made.rollouts[:3]
    packed = "\n\n".join(one.model_dump_json(context=PACKED) for one in some)
    for name, text in (("plain.jsonl", lines(some)), ("packed.jsonl", packed)):
        (tmp_path / name).write_text(text)
        assert read(tmp_path / name) == some, name
    assert read(tmp_path / "plain.jsonl", tmp_path / "packed.jsonl") == some * 2


def test_standard_input_is_a_source(made: Made, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines(made.rollouts))
    before = os.dup(0)
    try:
        with (tmp_path / "a.jsonl").open() as given:
            os.dup2(given.fileno(), 0)
        assert read("-") == made.rollouts
    finally:
        os.dup2(before, 0)
        os.close(before)


def test_a_directory_gives_the_training_steps_with_their_tasks(made: Made, tmp_path: Path) -> None:
    files = StepFiles(tmp_path)
    files.add_tasks(group.task for group in groups())
    parts = {SavedStep(10): made.rollouts[:4], SavedStep(9): made.rollouts[4:8]}
    for step, rollouts in {**parts, SavedStep(9, is_evaluation=True): made.rollouts[8:]}.items():
        files.add(step, rollouts)
        files.finish(step)
    found = list(records([str(tmp_path)]))
    assert [one.rollout for one in found] == made.rollouts[4:8] + made.rollouts[:4]
    assert all(one.task and one.task.task_id == one.rollout.task_id for one in found)
    [evaluated, *_] = records([str(tmp_path / "eval-000009.jsonl")])
    assert evaluated.task is not None


def test_a_directory_without_steps_gives_all_its_files(made: Made, tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_text(lines(made.rollouts[2:]))
    (tmp_path / "a.json").write_text(lines(made.rollouts[:2]))
    (tmp_path / "notes.txt").write_text("not rollouts")
    assert read(tmp_path) == made.rollouts


def test_a_journal_at_rest_is_read_and_left_as_it_is(made: Made) -> None:
    before = made.journal.read_bytes()
    found = list(records([str(made.journal)]))
    assert [one.rollout for one in found] == made.rollouts
    assert [one.task for one in found] == [group.task for group in groups() for _ in range(2)]
    assert made.journal.read_bytes() == before
    leftovers = {f"journal.sqlite{suffix}" for suffix in ("", ".lock", ".shelf", ".history")}
    assert {path.name for path in made.journal.parent.iterdir()} == leftovers


async def test_a_journal_is_read_while_a_service_writes_it(
    tiny_model: Path, chat: ChatFormat, tmp_path: Path
) -> None:
    asked = [group for group in groups() if group.task.agent == "letters"]
    async with StubEngine(tiny_model, Answers(chat)) as engine:
        settings = Settings(
            backends=(BackendSpec(url=engine.url),),
            agents=AGENTS,
            sandbox="process",
            journal=tmp_path / "journal.sqlite",
            run="r",
        )
        async with serving(settings) as url, AsyncRolloutClient(url) as client:
            await client.submit(asked)
            ids = [one for group in asked for one in group.rollout_ids()]
            ended = await client.wait(ids, timeout_s=60)
            assert read(tmp_path / "journal.sqlite") == ended
            await client.acknowledge([asked[0].group_id])
            assert read(tmp_path / "journal.sqlite") == ended[2:]
            assert (await client.submit([asked[0]]))[0].rollout_id == ids[0]


def test_an_invalid_source_is_named_in_one_line(made: Made, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    (tmp_path / "other.jsonl").write_text('{"a": 1}\n')
    (tmp_path / "cut.jsonl").write_text(lines(made.rollouts[:2])[:-9])
    (tmp_path / "empty").mkdir()
    assert "text, line 1: not a rollout: Invalid JSON" in problem(tmp_path / "text")
    assert "other.jsonl, line 1: not a rollout: rollout_id: Field required" in problem(
        tmp_path / "other.jsonl"
    )
    assert "cut.jsonl, line 2" in problem(tmp_path / "cut.jsonl")
    assert "has no file of rollouts" in problem(tmp_path / "empty")
    assert "No such file" in problem(tmp_path / "none")
    assert Rollouts(rollouts=made.rollouts)


def test_a_database_other_than_a_journal_of_this_version_is_refused(
    made: Made, tmp_path: Path
) -> None:
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE t (x)")
    assert "no journal" in problem(other)
    old = tmp_path / "old.sqlite"
    old.write_bytes(made.journal.read_bytes())
    with sqlite3.connect(old) as db:
        db.execute("PRAGMA user_version = 1")
    assert "of version 1" in problem(old)
    damaged = tmp_path / "damaged.sqlite"
    damaged.write_bytes(made.journal.read_bytes()[:5000])
    assert "cannot be read" in problem(damaged)
