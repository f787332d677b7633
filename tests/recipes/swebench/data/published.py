"""Made-up rows with the fields and forms of the published data sets."""

import json
from typing import Any

from recipes.common.data.fields import Row
from recipes.swebench.data.converted import Converted
from recipes.swebench.data.converter import convert
from recipes.swebench.data.diffs import file_diff
from recipes.swebench.data.environments import GradedBy

Fields = dict[str, Any]

PATCH = file_diff("src/project/core.py", "def f():\n    return 1\n", "def f():\n    return 2\n")
TEST_PATCH = file_diff("tests/test_core.py", "", "def test_f():\n    assert True\n") + file_diff(
    "tests/data/case.json", None, "{}\n"
)


def swe_bench(repo: str = "pallets/flask", version: str = "2.3", **changed: Any) -> Fields:
    """Returns the classic fields; the lists of tests are JSON text."""
    name = repo.replace("/", "__")
    row: Fields = {
        "repo": repo,
        "instance_id": f"{name}-1234",
        "base_commit": "a" * 40,
        "patch": PATCH,
        "test_patch": TEST_PATCH,
        "problem_statement": "f() returns the wrong number.",
        "hints_text": "",
        "created_at": "2023-01-01T00:00:00Z",
        "version": version,
        "FAIL_TO_PASS": json.dumps(["tests/test_core.py::test_f"]),
        "PASS_TO_PASS": json.dumps(["tests/test_core.py::test_g", "tests/test_old.py::C::test_h"]),
        "environment_setup_commit": "b" * 40,
        "difficulty": "<15 min fix",
    }
    return {**row, **changed}


def swe_gym(repo: str = "getmoto/moto", version: str = "5.0", **changed: Any) -> Fields:
    """Returns the classic fields with the lists of tests as lists."""
    row = swe_bench(repo, version)
    for field in ("environment_setup_commit", "difficulty"):
        del row[field]
    for field in ("FAIL_TO_PASS", "PASS_TO_PASS"):
        row[field] = json.loads(row[field])
    return {**row, **changed}


def skyrl(instance: Fields) -> Fields:
    prompt = [{"role": "user", "content": "..."}]
    return {"data_source": "swe-gym", "prompt": prompt, "ability": "coding", "instance": instance}


EVAL_SCRIPT = """\
#!/bin/bash
set -uxo pipefail
source /opt/miniconda3/bin/activate
conda activate testbed
cd /testbed
export LANG=en_US.UTF-8
sed -i '/en_US.UTF-8/s/^# //g' /etc/locale.gen && locale-gen
git config --global --add safe.directory /testbed
cd /testbed
git status
git show
git -c core.fileMode=false diff aaaa
source /opt/miniconda3/bin/activate
conda activate testbed
python -m pip install -e .
git checkout aaaa tests/test_core.py
git apply -v - <<'EOF_114329324912'
diff --git a/tests/test_core.py b/tests/test_core.py
export NOT=OURS
EOF_114329324912
: '>>>>> Start Test Output'
COMMAND
: '>>>>> End Test Output'
git checkout aaaa tests/test_core.py
"""


def newer(command: str, log_parser: str, **changed: Any) -> Fields:
    """Returns fields of a newer revision, which says how its tests are run."""
    row = swe_bench(
        image="swebench/sweb.eval.x86_64.pallets_1776_flask-1234:latest",
        eval_type="pass_and_fail",
        log_parser=log_parser,
        eval_script=EVAL_SCRIPT.replace("COMMAND", command),
    )
    return {**row, **changed}


R2E_TESTS = """\
import pytest

class TestCore:
    @pytest.mark.parametrize("x", [1.5])
    def test_f(self, x): assert True
    def test_g(self): assert True

def test_h(): assert False
"""


def r2e_gym(
    *,
    repo: str = "aiohttp",
    before: str | None = None,
    execution: Fields | None = None,
    **changed: Any,
) -> Fields:
    if before is None:
        before = (
            "PASSED r2e_tests/test_1.py::TestCore::test_g\n"
            "FAILED r2e_tests/test_1.py::TestCore::test_f[1.5] - assert 1 == 2\n"
            "FAILED r2e_tests/test_1.py::test_h - assert False\n"
        )
    head = "=========== \x1b[36mshort test summary info\x1b[0m ===========\n"
    run: Fields = {
        "repo_name": repo,
        "new_commit_hash": "c" * 40,
        "test_file_names": ["test_1.py", "conftest.py"],
        "test_file_codes": [R2E_TESTS, "import os\n"],
        "old_commit_res_stdout": head + before,
        **(execution or {}),
    }
    return {
        "repo_name": repo,
        "docker_image": f"namanjain12/{repo}_final:{'c' * 40}",
        "commit_hash": "c" * 40,
        "parsed_commit_content": json.dumps(r2e_commit()),
        "execution_result_content": json.dumps(run),
        "modified_files": ["aiohttp/core.py"],
        "modified_entity_summaries": [{"ast_type_str": "FunctionDef"}],
        "relevant_files": ["aiohttp/core.py"],
        "num_non_test_files": 1,
        "prompt": "...",
        "problem_statement": "Before.\n[ISSUE]\nf() returns the wrong number.\n[/ISSUE]",
        "expected_output_json": json.dumps(
            {
                "\x1b[1mTestCore.test_f[1.5]\x1b[0m": "PASSED",
                "TestCore.test_g": "PASSED",
                "test_h - assert False": "FAILED",
            }
        ),
        **changed,
    }


def r2e_commit() -> Fields:
    def diff(path: str, old: str, new: str) -> Fields:
        return {
            "header": {"file": {"path": path}, "misc_line": None},
            "old_file_content": old,
            "new_file_content": new,
            "is_binary_file": False,
            "minus_file": {"path": f"a/{path}" if old else "/dev/null"},
            "plus_file": {"path": f"b/{path}"},
            "hunks": [],
        }

    return {
        "file_diffs": [
            diff("aiohttp/core.py", "x = 1\n", "x = 2\n"),
            diff("aiohttp/new.py", "", "y = 1\n"),
            diff("tests/test_core.py", "", "def test(): pass\n"),
        ],
        "old_commit_hash": "d" * 40,
        "new_commit_hash": "c" * 40,
        "commit_message": "Fix f",
        "commit_date": "2023-01-01T00:00:00",
    }


def swe_smith(**changed: Any) -> Fields:
    row: Fields = {
        "instance_id": "oauthlib__oauthlib.1fd52536.lm_rewrite__abc123",
        "repo": "swesmith/oauthlib__oauthlib.1fd52536",
        "patch": PATCH,
        "FAIL_TO_PASS": ["tests/test_core.py::T::test_f"],
        "PASS_TO_PASS": ["tests/test_core.py::T::test_g", "tests/test_core.py::test_p[a"],
        "image_name": "swesmith.x86_64.oauthlib__oauthlib.1fd52536",
        "problem_statement": "f() returns the wrong number.",
    }
    return {**row, **changed}


INSTALL_CONFIG: Fields = {
    "install": "pip install -e .[dev]",
    "log_parser": "parse_log_pytest",
    "no_use_env": None,
    "packages": "requirements.txt",
    "pip_packages": ["pytest"],
    "python": "3.9",
    "test_cmd": "pytest --no-header -rA --tb=line --color=no -p no:cacheprovider",
}


def rebench(**changed: Any) -> Fields:
    """Returns the fields of SWE-rebench: `environment` is text, and `install_config` an object."""
    row = swe_gym("octo/project", "0.1")
    return {
        **row,
        "docker_image": "swerebench/sweb.eval.x86_64.octo_1776_project-1234",
        "environment": "name: testbed\n",
        "requirements": "pytest==8.0.0\n",
        "environment_setup_commit": "b" * 40,
        "install_config": INSTALL_CONFIG,
        "license_name": "MIT License",
        "meta": {"commit_name": "head_commit", "num_modified_files": 1},
        "FAIL_TO_FAIL": [],
        "PASS_TO_FAIL": [],
        **changed,
    }


def rebench_v2(**changed: Any) -> Fields:
    """Returns the fields of SWE-rebench-V2, whose tests' commands name their files."""
    row = swe_gym("octo/project")
    del row["version"]
    config = {"test_cmd": ["pytest -rA tests/test_core.py"], "log_parser": "parse_log_pytest"}
    return {
        **row,
        "image_name": "docker.io/swerebenchv2/octo-project:1234-aaaaaaa",
        "language": "python",
        "install_config": json.dumps({**config, "install": [], "base_image_name": "python_39"}),
        "interface": "",
        "license": "mit",
        **changed,
    }


def live(**changed: Any) -> Fields:
    """Returns the fields of SWE-bench-Live's Python rows."""
    row = swe_gym("octo/project")
    del row["version"]
    return {
        **row,
        "pull_number": "1234",
        "issue_numbers": ["1230"],
        "all_hints_text": "",
        "commit_urls": [],
        "test_cmds": ["pytest -rA"],
        "log_parser": "pytest",
        **changed,
    }


def pro(**changed: Any) -> Fields:
    """Returns the fields of SWE-bench Pro, with lists as Python's text."""
    row = swe_gym("octo/project", instance_id="instance_octo__project-1a-vnan")
    del row["version"]
    return {
        **{name: value for name, value in row.items() if not name.endswith("_TO_PASS")},
        "requirements": "- f() returns 2.",
        "interface": "No new interfaces.",
        "repo_language": "python",
        "fail_to_pass": str(row["FAIL_TO_PASS"]),
        "pass_to_pass": str(row["PASS_TO_PASS"]),
        "before_repo_set_cmd": "git reset --hard aaaa\ngit checkout bbbb -- tests/test_core.py",
        "selected_test_files_to_run": json.dumps(["tests/test_core.py"]),
        "dockerhub_tag": "octo.project-octo__project-1a",
        **changed,
    }


def nemotron(row: Fields) -> Fields:
    """Returns a row of NeMo Gym, which has another data set's row as JSON text."""
    metadata = {
        "instance_id": row["instance_id"],
        "base_commit": row["base_commit"],
        "dataset_name": "SWE-Gym/SWE-Gym",
        "split": "train",
        "problem_statement": row["problem_statement"],
        "instance_dict": json.dumps(row),
    }
    return {
        "responses_create_params": {"input": [], "metadata": metadata},
        "agent_ref": {"type": "responses_api_agents", "name": "swe_agents"},
    }


def converted(fields: Fields, graded_by: GradedBy = "recorder", **columns: str) -> Converted:
    return convert(Row(fields, "row 7 (its id)"), graded_by, columns)
