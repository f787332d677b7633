"""The pages that start a service, docs/quickstart.md and docs/trainer.md, run as they are printed.

Only ports are others, since those printed may be taken.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from prorl_service import local
from prorl_service.schemas import Rollout, Rollouts, RolloutState
from prorl_service.schemas.views import RolloutRows
from tests.cli.try_process import COMMAND, done
from tests.docs.printed import blocks, untimed, write

pytestmark = pytest.mark.processes

QUICKSTART = "quickstart.md"
PRORL = f'prorl() {{ {shlex.quote(sys.executable)} -m prorl_service.cli "$@"; }}'
URLS = ("PRORL_LIST_URL", "PRORL_SHOW_URL")
"""Variables of the option `--url` of the commands that the page runs."""
TRIAL, ENGINE, SERVICE, CURL, LOOK, INIT, WARM_START = blocks(QUICKSTART, "sh")[1:]


@dataclass(frozen=True, slots=True)
class Started:
    directory: Path
    url: str

    def run(self, script: str) -> str:
        """Runs lines of the shell with the service's port in place of the printed one."""
        port = self.url.rpartition(":")[2]
        ended = subprocess.run(
            ["bash", "-euc", f"{PRORL}\n{script.replace('8080', port)}"],
            cwd=self.directory,
            env=os.environ | {"COLUMNS": "200", **dict.fromkeys(URLS, self.url)},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        return ended.stdout


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """Builds the model and starts engine and service as the page does."""
    directory = tmp_path_factory.mktemp("quickstart")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(directory / "state"))
        patch.delenv("PRORL_TOKEN", raising=False)
        built = done([sys.executable, "-c", blocks(QUICKSTART, "python")[0]], directory)
        assert built.returncode == 0, built.stderr
        assert ENGINE == "prorl engine --model tiny --port 8000\n"
        assert SERVICE == "prorl serve --backend http://localhost:8000 --port 8080\n"
        with (
            local.engine(directory / "tiny", log=directory / "engine.log") as engine,
            local.service([engine.url], log=directory / "service.log") as service,
        ):
            yield Started(directory, service.url)


def test_a_rollout_without_a_model_prints_what_the_page_shows(tmp_path: Path) -> None:
    write(
        tmp_path,
        task_json=blocks(QUICKSTART, "json")[0],
        replies_jsonl=blocks(QUICKSTART, "text")[0],
    )
    ended = done([*COMMAND, *shlex.split(TRIAL)[2:], "--sandbox", "bubblewrap"], tmp_path)
    assert untimed(blocks(QUICKSTART, "")[0]) in untimed(ended.stdout), ended.stderr


def test_a_group_comes_back_over_http(started: Started) -> None:
    (started.directory / "group.json").write_text(blocks(QUICKSTART, "json")[1])
    submitted, rollout = re.split(
        r"(?<=\})(?=\{\"rollout_id\")", started.run(CURL).strip(), maxsplit=1
    )
    assert len(Rollouts.model_validate_json(submitted).rollouts) == 2
    assert Rollout.model_validate_json(rollout).state is RolloutState.DONE
    shown = started.run(LOOK)
    for line in ("hello.0  t1    done        0", "hello.1  t1    done        0", "reward 0"):
        assert line in shown


def test_the_trainer_gets_all_its_rollouts(started: Started) -> None:
    [program] = blocks("trainer.md", "python")
    file = started.directory / "train.py"
    file.write_text(program.replace("http://localhost:8080", started.url))
    ended = done([sys.executable, str(file)], started.directory)
    assert ended.returncode == 0, ended.stderr
    lines = [line.split() for line in ended.stdout.splitlines()]
    assert len({line[0] for line in lines}) == 2 * 2 * 4, "two steps of two groups of four"
    assert all(0 < int(trained_on) < int(tokens) for _, _, tokens, trained_on in lines)


def test_tasks_of_ones_own_are_submitted_as_tasks_md_prints(started: Started) -> None:
    write(started.directory, task_json=blocks("tasks.md", "json")[0])
    program = blocks("tasks.md", "python")[0]
    file = started.directory / "submit.py"
    file.write_text(program.replace("http://localhost:8080", started.url))
    ended = done([sys.executable, str(file)], started.directory)
    lines = [line.split() for line in ended.stdout.splitlines()]
    assert [state for _, state, _ in lines] == ["done"] * 4, ended.stderr
    assert {one for one, _, _ in lines} == {f"mine-multiply-17-3.{index}" for index in range(4)}


def test_lists_are_asked_for_as_looking_md_prints(started: Started) -> None:
    command = blocks("looking.md", "sh")[-1]
    assert RolloutRows.model_validate_json(started.run(command)).rollouts == []


def test_examples_of_the_reference_are_valid_json() -> None:
    for text in blocks("reference/http.md", "sh"):
        words = shlex.split(text)
        if "-d" in words:
            json.loads(words[words.index("-d") + 1])
