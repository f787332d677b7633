"""`prorl export` and `prorl replay` as a user runs them."""

import json
import sys
from pathlib import Path

import pytest

from prorl_service.client.saved import SavedStep, StepFiles, read_rollouts, read_tasks
from prorl_service.schemas import Rollout
from tests.cli.called import called
from tests.exports.made_rollouts import Made, groups, make
from tests.programs import ran

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def made(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tiny_model, tmp_path_factory.mktemp("journal"))


@pytest.fixture
def saved(made: Made, tmp_path: Path) -> Path:
    """Two steps and an evaluation, as trainers save them."""
    files = StepFiles(tmp_path / "saved")
    files.add_tasks(group.task for group in groups())
    parts = {
        SavedStep(1): made.rollouts[:6],
        SavedStep(2): made.rollouts[6:],
        SavedStep(2, is_evaluation=True): made.rollouts[:2],
    }
    for step, rollouts in parts.items():
        files.add(step, rollouts)
        files.finish(step)
    return tmp_path / "saved"


def prorl(*arguments: object, code: int = 0) -> tuple[str, str]:
    """What it prints, and what it says beside it."""
    done = called(*arguments, COLUMNS="120")
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


def test_rollouts_are_filtered_and_printed_as_lines(made: Made) -> None:
    out, said = prorl("export", made.journal, "--format", "jsonl", "--min-reward", "1")
    printed = [Rollout.model_validate_json(line) for line in out.splitlines()]
    assert printed == [one for one in made.rollouts if one.reward == 1]
    assert said == "prorl: 8 written, 4 rollouts not wanted\n"
    letters = ("--agent", "letters", "--agent", "forgetful", "--only", "done")
    out, _ = prorl("export", made.journal, "--format", "jsonl", *letters)
    agents = [json.loads(line)["agent"] for line in out.splitlines()]
    assert agents == ["letters"] * 2 + ["forgetful"] * 2


def test_exported_rollouts_can_be_exported_again(made: Made, tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    _, said = prorl("export", made.journal, "--format", "jsonl", "--out", file)
    assert said == f"prorl: 12 written to {file}\n"
    assert [*read_rollouts(file)] == made.rollouts


def test_sft_rows_of_a_training_are_its_steps(made: Made, saved: Path) -> None:
    out, said = prorl("export", saved, "--format", "sft", "--tokenizer", made.model)
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["rollout_id"] for row in rows] == [
        *(f"g-{group}.{index}" for group in range(4) for index in range(2)),
        *("g-4.0", "g-4.0", "g-4.1", "g-4.1"),
    ]
    assert said == (
        "prorl: 12 written, 2 left out: not trained on, prompt unreadable, or tokens of pictures\n"
    )


def test_each_document_of_atif_is_a_file(made: Made, tmp_path: Path) -> None:
    prorl("export", made.journal, "--format", "atif", "--out", tmp_path / "atif")
    names = {path.name for path in (tmp_path / "atif").iterdir()}
    assert len(names) == 14
    assert {"g-0.0.json", "g-4.0.json", "g-4.0-segment-1.json", "g-5.1.json"} < names


@pytest.mark.parametrize(
    ("arguments", "problem", "hint"),
    [
        (["--format", "sft"], "--format sft needs --tokenizer", "its directory"),
        (["--format", "sft", "--tokenizer", "/none"], "cannot load a tokenizer from /none", ""),
        (["--format", "csv"], "csv", ""),
        (["--format", "jsonl", "--out", "/none/x.jsonl"], "--out /none/x.jsonl: No such", ""),
        (["--format", "tokens", "--out", "/none/x.parquet"], "--out /none/x.parquet: ", ""),
    ],
)
def test_errors_of_an_export_are_one_line(
    made: Made, arguments: list[str], problem: str, hint: str
) -> None:
    _, said = prorl("export", made.journal, *arguments, code=2)
    assert problem in said.splitlines()[0]
    assert hint in said
    assert "Traceback" not in said


def test_parquet_without_pyarrow_is_one_line(made: Made, tmp_path: Path) -> None:
    (tmp_path / "pyarrow.py").write_text("raise ImportError")
    arguments = ("--format", "tokens", "--out", tmp_path / "x.parquet")
    words = ["export", str(made.journal), *map(str, arguments)]
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); sys.argv[1:] = {words!r}\n"
        "from prorl_service.cli.main import main\nmain()\n"
    )
    done = ran(sys.executable, "-c", program)
    assert done.returncode == 2
    assert "Parquet needs pyarrow" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_reader_that_closes_the_pipe_ends_an_export_quietly(made: Made) -> None:
    command = (
        f"{sys.executable} -m prorl_service.cli export {made.journal} --format tokens | head -c 9"
    )
    done = ran("bash", "-c", command)
    assert "Traceback" not in done.stderr
    assert "Broken" not in done.stderr


# --- prorl replay -------------------------------------------------------------------------------


def test_replay_shows_each_step(saved: Path) -> None:
    out, _ = prorl("replay", saved)
    rows = [line.split() for line in out.splitlines()]
    assert rows[1] == ["step", "1", "6", "0", "0.667", "0", "of", "3"]
    assert rows[2] == ["step", "2", "6", "2", "1.000", "0", "of", "3"]
    assert rows[3][:2] == ["evaluation", "2"]


REWARDS = """
def turns(rollout, task):
    return len(rollout.trajectory.turns) + rollout.index * (task.data.get("answer") == "42")

def boom(rollout, task):
    return {}[rollout.task_id]

def text(rollout, task):
    return "much"
"""


@pytest.fixture
def rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a working directory with functions of rewards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "rewards", raising=False)
    (tmp_path / "rewards.py").write_text(REWARDS)


@pytest.mark.usefixtures("rewards")
def test_saved_rollouts_get_new_rewards_and_can_be_trained_on(saved: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    way = ("--reward", "rewards.py:turns")
    out, _ = prorl("replay", saved, *way, "--out", new)
    assert out.splitlines()[1].split()[-4:] == ["2.833", "3", "of", "3"]
    for step in ("step-000001", "step-000002", "eval-000002"):
        before, after = (
            [*read_rollouts(directory / f"{step}.jsonl")] for directory in (saved, new)
        )
        assert [one.trajectory for one in before] == [one.trajectory for one in after]
        for old, rewarded in zip(before, after, strict=True):
            if old.trajectory is None or old.error is not None:
                assert rewarded == old
                continue
            is_math = rewarded.agent == "math"
            assert rewarded.reward == len(old.trajectory.turns) + is_math * old.index
            assert rewarded.reward_components["saved_reward"] == old.reward
    assert read_tasks(new) == read_tasks(saved)
    assert prorl("replay", saved, "--reward", "rewards:turns")[0] == out


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--reward", "rewards.py"], "names no function"),
        (["--reward", "rewards.py:none"], "has no none"),
        (["--reward", "none.py:turns"], "there is no file"),
        (["--reward", "nothing_of_that_name:turns"], "no module 'nothing_of_that_name'"),
        (["--reward", "rewards.py:boom"], "on rollout g-0.0: KeyError: 'task-0'"),
        (["--reward", "rewards.py:text"], "on rollout g-0.0: 'much' is not a number"),
        (["--out", "x"], "--out needs --reward"),
        (["--reward", "rewards.py:turns", "--out", "saved"], "would replace"),
    ],
)
@pytest.mark.sampled(3)
@pytest.mark.usefixtures("rewards")
def test_errors_of_a_reward_function_are_one_line(
    saved: Path, arguments: list[str], problem: str
) -> None:
    _, said = prorl("replay", saved, *arguments, code=2)
    assert problem in said.splitlines()[0]
    assert len(said.splitlines()) <= 2


def test_a_directory_without_steps_is_one_line(tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / "none"):
        _, said = prorl("replay", directory, code=2)
        assert "Traceback" not in said
        assert str(directory) in said.splitlines()[0]
