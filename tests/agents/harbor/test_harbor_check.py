"""`prorl harbor check` as users call it: which tasks a policy could win without solving them."""

import json
from pathlib import Path

import pytest

from prorl_service.agents.harbor.data import HarborData
from prorl_service.schemas import Task
from tests.agents.harbor.directories import BASE, SOLUTION, directory, prorl
from tests.sandbox.images.debian import debian_image

pytestmark = pytest.mark.processes
EXAMPLES = Path(__file__).parents[3] / "examples" / "harbor"


def test_the_examples_are_sound(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    done = prorl("check", EXAMPLES, "-j", 4, "--image-base", BASE, "--json", results)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sound") == 5
    probes = [probe for one in json.loads(results.read_text()) for probe in one["probes"]]
    assert len(probes) == 5 * 9
    assert all(probe["reward"] == (probe["name"] == "oracle") for probe in probes)


def test_a_task_that_cheats_can_win_is_named(tmp_path: Path) -> None:
    directory(
        tmp_path / "weak", test="[ -e answer.txt ]; echo $((1 - $?)) > /logs/verifier/reward.txt\n"
    )
    directory(tmp_path / "lazy", test="echo 1 > /logs/verifier/reward.txt\n", files=SOLUTION)
    done = prorl("check", tmp_path)
    assert done.returncode == 1
    assert "doing nothing gets 1" in done.stdout
    assert "it has no solution/solve.sh to check with" in done.stdout


def test_a_verifier_without_a_reward_on_failure_is_found_out(tmp_path: Path) -> None:
    strict = "set -e\n[ -e answer.txt ]\necho 1 > /logs/verifier/reward.txt\n"
    directory(tmp_path / "strict", test=strict, files=SOLUTION)
    directory(tmp_path / "broken", test="exit 3\n", files=SOLUTION)
    output, results = tmp_path / "tasks.jsonl", tmp_path / "results.json"
    done = prorl("check", tmp_path, "-j", 4, "-o", output, "--json", results)
    assert done.returncode == 1, done.stderr
    assert "the verifier gives no reward when it fails: reward_if_absent = 0" in done.stdout
    assert "the verifier gives the solution no reward" in done.stdout
    found = {one["task"]: one["reward_if_absent"] for one in json.loads(results.read_text())}
    assert found == {"strict": 0, "broken": None}
    [line] = output.read_text().splitlines()
    task = Task.model_validate_json(line)
    assert task.task_id == "strict"
    assert HarborData.model_validate(task.data).steps[0].verifier.reward_if_absent == 0


ELSEWHERE = """\
[ "$(answer)" = 42 ] && [ "$(cat ~/.config/mine/answer)" = 42 ]
echo $((1 - $?)) > /logs/verifier/reward.txt
"""
WRITES_ELSEWHERE = """\
#!/bin/bash
mkdir -p ~/.config/mine /usr/local/bin && echo 42 | tee ~/.config/mine/answer > ~/.bash_history
printf '#!/bin/sh\\necho 42\\n' > /usr/local/bin/answer && chmod +x /usr/local/bin/answer
"""


def test_what_a_solution_writes_elsewhere_becomes_work(tmp_path: Path) -> None:
    path = tmp_path / "elsewhere"
    directory(path, test=ELSEWHERE, files={"solution/solve.sh": WRITES_ELSEWHERE})
    output, results = tmp_path / "tasks.jsonl", tmp_path / "results.json"
    done = prorl("check", path, "-j", 4, "-o", output, "--json", results)
    assert done.returncode == 0, done.stderr + done.stdout
    work = ["root/.config", "usr/local/bin/answer"]
    assert f"the solution writes elsewhere: work = {json.dumps(work)}" in done.stdout
    assert [one["work"] for one in json.loads(results.read_text())] == [work]
    task = Task.model_validate_json(output.read_text())
    assert HarborData.model_validate(task.data).work == work


def test_tests_that_import_from_the_current_directory_are_found_out(tmp_path: Path) -> None:
    test = (
        "python3 -m unittest -q answer && r=1; echo ${r:-0} > /logs/verifier/reward.txt\n"
        "python3 -c 'import json, answer' || echo 0 > /logs/verifier/reward.txt\n"
    )
    solve = "echo 'import unittest, json; json.loads(\"1\")' > answer.py\n"
    directory(tmp_path / "task", test=test, files={"solution/solve.sh": f"#!/bin/bash\n{solve}"})
    output = tmp_path / "tasks.jsonl"
    done = prorl("check", tmp_path / "task", "-j", 4, "-o", output)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "isolated = false" in done.stdout
    task = Task.model_validate_json(output.read_text())
    assert not HarborData.model_validate(task.data).isolated


def test_an_image_that_a_task_names_has_a_substitute_or_is_built(tmp_path: Path) -> None:
    files = SOLUTION | {"environment/Dockerfile": "FROM debian:bookworm-slim\nWORKDIR /app\n"}
    directory(tmp_path / "task", files=files)
    named = tmp_path / "task" / "task.toml"
    missing = "127.0.0.1:9/of/task:1"
    named.write_text(named.read_text().replace(str(debian_image()), missing))
    for options in (("--image-base", f"{missing}={debian_image()}"), ("--build",)):
        done = prorl("check", tmp_path, "-j", 4, "--image-base", BASE, *options)
        assert done.returncode == 0, done.stderr + done.stdout
