"""The offline problems, whose known outputs are compared with those of bash and Python."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recipes.math_code.offline import code, files, look, math
from recipes.math_code.offline.examples import Attempt, Example
from recipes.math_code.rows import CodeProblem, MathProblem

MODULES: list[Any] = [math, files, code, look]


@pytest.mark.parametrize("module", MODULES)
def test_splits_share_no_problem(module: Any) -> None:
    splits = [{one.problem_id: one for one in module.problems(s)} for s in ("train", "heldout")]
    train, heldout = splits
    assert min(len(train), len(heldout)) >= 60
    assert not train.keys() & heldout.keys()
    assert not {one.asked for one in train.values()} & {one.asked for one in heldout.values()}


@pytest.mark.slow
@pytest.mark.parametrize("module", MODULES)
def test_problems_are_a_function_of_the_seed(module: Any) -> None:
    assert module.problems("train", seed=1) == module.problems("train", seed=1)
    assert module.problems("train", seed=1) != module.problems("train", seed=2)


def check_all(examples: list[Example], earns: Callable[[Example, Attempt], bool]) -> None:
    for example in examples:
        assert earns(example, example.right)
        assert not any(earns(example, wrong) for wrong in example.wrong), example


@pytest.mark.processes
@pytest.mark.parametrize("tool", ["bash", "ipython"])
def test_the_tools_print_the_known_outputs(tool: math.Tool) -> None:
    examples = math.examples("heldout", tool=tool)[:8]
    attempts = [one for example in examples for one in (example.right, *example.wrong)]
    interpreter = {"bash": "bash", "ipython": sys.executable}[tool]
    script = "\n".join(next(iter(one.arguments.values())) for one in attempts)
    done = subprocess.run([interpreter, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [one.output for one in attempts]
    assert all(one.reply == rf"\boxed{{{one.output}}}" for one in attempts)


def test_only_the_right_calculation_has_the_answer() -> None:
    def earns(example: Example, attempt: Attempt) -> bool:
        assert isinstance(example.problem, MathProblem)
        return attempt.output == example.problem.answer

    for module in (math, files):
        check_all(module.examples("train") + module.examples("heldout"), earns)


@pytest.mark.processes
def test_commands_print_what_is_known_of_files(tmp_path: Path) -> None:
    for example in files.examples("heldout")[:12]:
        assert isinstance(example.problem, MathProblem)
        for name, text in example.problem.files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        for one in (example.right, *example.wrong):
            command = ["bash", "-c", one.arguments["command"]]
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
            assert done.stdout.split() == [one.output]


@pytest.mark.processes
def test_hidden_tests_tell_all_programs_apart() -> None:
    check_all(code.examples("heldout")[:20], passes)


def passes(example: Example, attempt: Attempt) -> bool:
    """Runs all tests in one process: `exec` runs the program once for each."""
    assert isinstance(example.problem, CodeProblem)
    tests, program = example.problem.tests, attempt.arguments["file_text"]
    run = f"for x in {[int(case.input.strip('[]')) for case in tests.cases]}:\n"
    if tests.fn_name:
        run += f"    exec(program, names := {{}}); print(names[{tests.fn_name!r}](x))"
    else:
        run += "    exec(program, {'input': lambda: str(x)})"
    script = f"program = {program!r}\n{run}"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True
    )
    return done.stdout.split() == [str(case.expected).strip() for case in tests.cases]
