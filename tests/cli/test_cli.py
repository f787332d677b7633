"""The `prorl` command itself; what its subcommands run is tested elsewhere."""

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_origin

import pytest
from cyclopts import App
from cyclopts.argument import Argument
from pydantic import TypeAdapter

from prorl_service import __version__, local
from prorl_service.cli.main import COMMANDS, app
from prorl_service.cli.program import one_line_errors
from tests.cli.called import called, printed
from tests.programs import CLI, prorl, ran

pytestmark = pytest.mark.processes

SUMMARIES = {name: text for group in COMMANDS.values() for name, (_, text) in group.items()}


def test_help_lists_the_commands_and_imports_none_of_them() -> None:
    program = (
        "import sys\nfrom prorl_service.cli.main import app\n"
        "app.meta(['--help'])\n"
        "slow = {'pydantic', 'fastapi', 'httpx', 'prorl_service.schemas'} & set(sys.modules)\n"
        "sys.exit(' '.join(slow) or 0)"
    )
    done = ran(sys.executable, "-c", program)
    assert done.returncode == 0, done.stderr
    for name, text in SUMMARIES.items():
        assert name in done.stdout
        assert text in done.stdout


@pytest.mark.parametrize("name", SUMMARIES)
@pytest.mark.sampled(5)
def test_each_command_has_its_own_help(name: str) -> None:
    assert printed(name, "--help").startswith(f"Usage: prorl {name}")


def test_the_version_is_printed() -> None:
    assert printed("--version") == f"prorl {__version__}\n"


@pytest.mark.parametrize(
    ("words", "completed"),
    [("prorl se", "serve"), ("prorl serve --jo", "--journal"), ("prorl images pu", "pull")],
)
def test_a_shell_completes_commands_and_options(words: str, completed: str, tmp_path: Path) -> None:
    script = tmp_path / "prorl"
    printed("--install-completion", "--shell", "bash", "--output", str(script))
    last = len(words.split()) - 1
    program = f"""
        . {script}
        COMP_WORDS=({words}) COMP_CWORD={last}
        $(complete -p prorl | sed -E 's/.*-F ([^ ]+).*/\\1/')
        echo "${{COMPREPLY[@]}}"
    """
    done = ran("bash", "-c", program)
    assert done.stdout.split() == [completed], done.stderr


def options_of(*arguments: str, **environment: str) -> list[str]:
    """Returns what a service that cannot start prints about its options."""
    done = called("serve", "--journal", "none", *arguments, **environment)
    assert done.returncode == 2
    return done.stderr.splitlines()


def test_options_come_from_flags_else_variables_else_a_file(tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    file.write_text("run_workers: -1\neval_workers: -1\ninit_workers: -1\n")
    given = ("--config", str(file), "--init-workers", "4")
    [problem] = options_of(*given, PRORL_SERVE_EVAL_WORKERS="5")
    assert problem == "prorl: --run-workers: Input should be greater than 0"


def test_the_last_value_of_an_option_given_twice_counts() -> None:
    [problem] = options_of("--port", "8080", "--port", "70000")
    assert problem.startswith("prorl: --port: ")
    [problem] = options_of("--backend", "http://localhost:1", "--backend", "localhost")
    assert problem.startswith("prorl: --backend: ")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("prot: 8080", "prot"),
        ("- port", "expected options by name"),
        ("port: [", "options.yaml, line 1: "),
        (None, "No such file"),
    ],
)
def test_a_bad_file_of_options_is_refused_in_one_line(
    content: str | None, problem: str, tmp_path: Path
) -> None:
    file = tmp_path / "options.yaml"
    if content is not None:
        file.write_text(content)
    assert problem in options_of("--config", str(file))[0]


def test_a_model_is_checked(tiny_model: Path) -> None:
    table = printed("check-model", str(tiny_model))
    assert re.search(r"tool calls +│ read as hermes", table)
    assert re.search(r"end of a turn +│ <\|im_end\|>", table)


def test_a_model_unfit_for_agents_with_tools_is_named(tiny_model: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    template = "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
    (model / "chat_template.jinja").write_text(template)
    checked = called("check-model", model)
    assert checked.returncode == 1
    assert "tools in the prompt" in checked.stdout


def test_the_status_of_a_missing_service_is_one_line_with_a_hint() -> None:
    done = called("status", "--url", f"http://127.0.0.1:{local.free_port()}")
    assert done.returncode == 2
    problem, hint = done.stderr.splitlines()
    assert "Connection refused" in problem
    assert hint == "  check that the service runs there: `prorl serve`"


@pytest.mark.parametrize("command", ["status", "list"])
def test_the_address_of_the_service_comes_from_the_environment(command: str) -> None:
    url = f"http://127.0.0.1:{local.free_port()}"
    assert f"GET {url}/v1/" in called(command, PRORL_URL=url).stderr


def test_an_argument_that_belongs_to_no_option_is_named() -> None:
    done = prorl("serve", "http://localhost:8000")
    assert done.stderr.splitlines() == [
        "prorl: 'http://localhost:8000' belongs to no option",
        "  `--help` lists the options",
    ]


def test_a_reader_that_has_seen_enough_ends_any_command_quietly() -> None:
    command = f"{' '.join(CLI)} alerts | true; exit ${{PIPESTATUS[0]}}"
    done = ran("bash", "-c", command)
    assert (done.returncode, done.stderr) == (141, "")


def options_with_choices(of: App) -> Iterator[tuple[Argument, tuple[str, ...]]]:
    if of.default_command is not None:
        for option in of.assemble_argument_collection():
            if choices := option.get_choices():
                yield option, choices
    for name in of:
        if not name.startswith("-"):
            yield from options_with_choices(of[name])


def test_options_take_their_choices_as_the_help_shows_them_and_as_the_api_does() -> None:
    found = [one for name in SUMMARIES for one in options_with_choices(app[name])]
    assert {"--sandbox", "--finish-reason", "--outcome", "--role"} <= {one.name for one, _ in found}
    for option, choices in found:
        takes = TypeAdapter(option.hint).validate_python
        for shown in choices:
            spellings = [shown, shown.replace("-", "_")]
            many = get_origin(option.resolved_hint) is list
            [taken, same] = takes(spellings) if many else map(takes, spellings)
            assert taken == same


def test_ctrl_c_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end, one_line_errors():
        raise KeyboardInterrupt
    assert end.value.code == 130
    assert capsys.readouterr().err == "prorl: stopped by Ctrl-C\n"
