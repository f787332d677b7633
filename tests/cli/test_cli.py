"""The `prorl` command as such; what its commands do is tested where that is."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from prorl_service import __version__, local
from prorl_service.cli.main import COMMANDS

PRORL = [sys.executable, "-m", "prorl_service.cli"]


def said(*arguments: str, **environment: str) -> str:
    """Output without colours or broken lines: as wide as can be."""
    done = subprocess.run(
        [*PRORL, *arguments],
        env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout


def test_help_lists_the_commands_and_imports_none_of_them() -> None:
    program = (
        "import sys\nfrom typer.testing import CliRunner\nfrom prorl_service.cli import app\n"
        "print(CliRunner().invoke(app, ['--help']).output)\n"
        "slow = {'pydantic', 'fastapi', 'httpx', 'prorl_service.schemas'} & set(sys.modules)\n"
        "sys.exit(' '.join(slow) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    for name, (_, text) in COMMANDS.items():
        assert name in done.stdout
        assert text in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_its_own_help(name: str) -> None:
    assert f"prorl_service.cli {name} [OPTIONS]" in said(name, "--help")


def test_the_version_can_be_asked_for() -> None:
    assert said("--version") == f"prorl {__version__}\n"


@pytest.mark.parametrize(
    ("words", "completed"),
    [("prorl se", "serve"), ("prorl serve --jo", "--journal"), ("prorl images pu", "pull")],
)
def test_a_shell_completes_commands_and_options(words: str, completed: str) -> None:
    last = str(len(words.split()) - 1)
    environment = {"COMP_WORDS": words, "COMP_CWORD": last}
    program = "from prorl_service.cli import app; app(prog_name='prorl')"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "_PRORL_COMPLETE": "complete_bash", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.split() == [completed]


def test_a_model_is_checked(tiny_model: Path) -> None:
    table = said("check-model", str(tiny_model))
    assert re.search(r"tool calls +│ read as hermes", table)
    assert re.search(r"end of a turn +│ <\|im_end\|>", table)


def test_a_model_that_is_of_no_use_to_agents_with_tools_is_named(
    tiny_model: Path, tmp_path: Path
) -> None:
    model = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    template = "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
    (model / "chat_template.jinja").write_text(template)
    with pytest.raises(subprocess.CalledProcessError) as failed:
        said("check-model", str(model))
    assert failed.value.returncode == 1
    assert "tools in the prompt" in failed.value.stdout


def test_the_status_of_nobody_is_one_line_and_what_to_do() -> None:
    command = [*PRORL, "status", "--url", f"http://127.0.0.1:{local.free_port()}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    problem, hint = done.stderr.splitlines()
    assert "Connection refused" in problem
    assert hint == "  check that the service runs there: `prorl serve`"
