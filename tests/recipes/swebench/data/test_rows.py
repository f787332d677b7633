"""Rows of each data set become instances, or say which field of which row is wrong."""

import json
from typing import Any

import pytest

from recipes.common.data.fields import RowError
from recipes.swebench.data.diffs import file_diff, reversed_patch
from tests.recipes.swebench.data import published
from tests.recipes.swebench.data.published import PATCH, TEST_PATCH, Fields, converted


def test_a_row_of_swe_bench_is_graded_by_the_recorder() -> None:
    row = converted(published.swe_bench()).instance
    assert row.instance_id == "pallets__flask-1234"
    assert row.image == "docker://swebench/sweb.eval.x86_64.pallets_1776_flask-1234:latest"
    assert row.FAIL_TO_PASS == ["tests/test_core.py::test_f"]
    assert (row.patch, row.test_patch) == (PATCH, TEST_PATCH)
    environment = row.environment
    assert environment.repository == "/testbed"
    assert environment.activate == "source /opt/miniconda3/bin/activate testbed"
    assert environment.test_files == ["tests/test_core.py", "tests/test_old.py"]
    assert environment.pytest_arguments == ["-rA"]
    assert environment.installed_plugins
    assert not environment.test_command
    task = row.task()
    assert task.image == row.image
    assert task.messages[0].content == "f() returns the wrong number."


@pytest.mark.parametrize(
    ("repo", "version", "command", "log_parser"),
    [
        (
            "django/django",
            "4.1",
            "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1 test_core",
            "parse_log_django",
        ),
        (
            "sympy/sympy",
            "1.9",
            "PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' bin/test -C --verbose"
            " tests/test_core.py",
            "parse_log_sympy",
        ),
        (
            "sphinx-doc/sphinx",
            "5.0",
            "tox --current-env -epy39 -v -- tests/test_core.py",
            "parse_log_sphinx",
        ),
    ],
)
def test_repositories_with_their_own_runner_are_graded_by_log(
    repo: str, version: str, command: str, log_parser: str
) -> None:
    environment = converted(published.swe_bench(repo, version)).instance.environment
    assert environment.test_command == command
    assert environment.log_parser == log_parser
    assert environment.test_files == []


def test_setup_commands_of_a_version_run_before_its_tests() -> None:
    old = converted(published.swe_bench("django/django", "2.2")).instance.environment
    assert "export LC_ALL=en_US.UTF-8" in old.activate
    assert old.test_command.startswith("(python setup.py install) > /dev/null 2>&1; ./tests/run")
    newer = converted(published.swe_bench("django/django", "3.1")).instance.environment
    assert newer.test_command.startswith("(sed -i '/en_US.UTF-8/s/^# //g' /etc/locale.gen && ")


def test_a_fix_of_compiled_source_is_built_and_graded_by_log() -> None:
    patch = PATCH.replace("core.py", "core.pyx")
    row = published.swe_bench("scikit-learn/scikit-learn", "1.3", patch=patch)
    environment = converted(row).instance.environment
    assert environment.log_parser == "parse_log_scikit"
    assert environment.test_command == (
        "(python -m pip install -v --no-use-pep517 --no-build-isolation -e .) > /dev/null 2>&1;"
        " pytest -rA tests/test_core.py"
    )


def test_an_installed_copy_does_not_hide_the_repository() -> None:
    environment = converted(published.swe_bench("psf/requests", "2.27")).instance
    assert environment.environment.activate.endswith("export PYTHONPATH=$PWD:${PYTHONPATH:-}")


def test_rows_of_pytest_may_change_pytests_own_source() -> None:
    row = converted(published.swe_bench("pytest-dev/pytest", "7.2")).instance
    assert "src/_pytest/" in row.task().data["allowed_files"]  # type: ignore[operator]


def test_newer_rows_say_how_they_are_tested() -> None:
    pytest_row = published.newer("pytest -rA -p no:x tests/test_core.py", "parse_log_flask")
    row = converted(pytest_row).instance
    assert row.image == pytest_row["image"]
    assert row.environment.pytest_arguments == ["-rA", "-p", "no:x"]
    assert row.environment.activate.splitlines()[1:] == ["export LANG=en_US.UTF-8"]
    other = published.newer("./runtests.py test_core", "parse_log_django", repo="new/project")
    environment = converted(other).instance.environment
    assert environment.log_parser == "parse_log_django"
    assert environment.test_command == (
        "(sed -i '/en_US.UTF-8/s/^# //g' /etc/locale.gen && locale-gen) > /dev/null 2>&1;"
        " ./runtests.py test_core"
    )


def test_any_row_can_be_graded_by_its_log() -> None:
    environment = converted(published.swe_bench(), "log").instance.environment
    assert environment.test_command == "pytest -rA tests/test_core.py"
    assert environment.log_parser == "parse_log_flask"


CUT = ["tests/test_core.py::test_cut[a", "tests/test_core.py", "[100%]"]


def test_ids_that_no_test_has_are_left_out() -> None:
    whole = ["tests/test_core.py::test_f", "tests/test_core.py::test_é[é]"]
    result = converted(published.swe_bench(FAIL_TO_PASS=whole, PASS_TO_PASS=CUT))
    assert [whole[0], "tests/test_core.py::test_é[\\xe9]"] == result.instance.FAIL_TO_PASS
    assert result.instance.PASS_TO_PASS == []
    assert result.left_out == tuple(CUT)


def test_a_row_with_only_cut_ids_is_graded_by_the_log_that_cut_them() -> None:
    result = converted(published.swe_bench(FAIL_TO_PASS=CUT))
    assert result.instance.FAIL_TO_PASS == CUT
    assert result.left_out == ()
    assert result.instance.environment.log_parser == "parse_log_flask"


def test_swe_gym_rows_become_instances() -> None:
    row = converted(published.swe_gym()).instance
    assert row.image == "docker://xingyaoww/sweb.eval.x86_64.getmoto_s_moto-1234:latest"
    assert row.environment.pytest_arguments == ["-n0", "-rA"]
    conan = converted(published.swe_gym("conan-io/conan", "2.1")).instance
    assert conan.environment.activate.endswith("\nexport PYTHONPATH=${PYTHONPATH:-}:$(pwd)")
    monai = converted(published.swe_gym("Project-MONAI/MONAI", "1.1")).instance
    assert monai.image is not None
    assert "project-monai_s_monai-1234" in monai.image


def test_mypys_python_tests_run_like_others() -> None:
    environment = converted(published.swe_gym("python/mypy", "1.4")).instance.environment
    assert environment.pytest_arguments == ["-n0", "-rA"]


def test_skyrl_wraps_rows_as_objects_or_as_json() -> None:
    as_object = converted(published.skyrl(published.swe_gym())).instance
    wrapped = {**published.skyrl({}), "instance": json.dumps(published.swe_gym())}
    assert converted(wrapped).instance == as_object
    validation = published.skyrl(published.swe_bench("pvlib/pvlib-python", "0.9"))
    image = converted(validation).instance.image
    assert image == "docker://swebench/sweb.eval.x86_64.pvlib_1776_pvlib-python-1234:latest"


def test_an_r2e_gym_row_becomes_an_instance() -> None:
    result = converted(published.r2e_gym())
    row = result.instance
    assert row.instance_id == f"aiohttp__{'c' * 40}"
    assert row.base_commit == "d" * 40
    assert row.problem_statement == "f() returns the wrong number."
    assert row.FAIL_TO_PASS == ["r2e_tests/test_1.py::TestCore::test_f[1.5]"]
    assert row.PASS_TO_PASS == ["r2e_tests/test_1.py::TestCore::test_g"]
    assert result.left_out == ("test_h",)
    assert row.patch.count("diff --git") == 2
    assert "new file mode 100644\n--- /dev/null\n+++ b/aiohttp/new.py\n" in row.patch
    assert "+++ b/r2e_tests/test_1.py\n" in row.test_patch
    assert "+++ b/r2e_tests/conftest.py\n" in row.test_patch
    assert row.image == f"docker://namanjain12/aiohttp_final:{'c' * 40}"
    assert row.environment.activate.startswith("rm -rf /r2e_tests\n")
    assert row.environment.python == "/testbed/.venv/bin/python -W ignore"


def test_some_r2e_gym_repositories_need_extra_settings() -> None:
    orange = converted(published.r2e_gym(repo="orange3")).instance.environment
    assert orange.python.startswith("xvfb-run --auto-servernum /testbed/")
    assert "QT_QPA_PLATFORM=minimal" in orange.activate
    pandas = converted(published.r2e_gym(repo="pandas")).instance.environment
    assert pandas.pytest_arguments == ["-o", "addopts="]


def test_tests_that_could_not_be_collected_before_must_be_fixed() -> None:
    row = published.r2e_gym(before="ERROR r2e_tests/test_1.py - ImportError: cannot import f\n")
    assert len(converted(row).instance.FAIL_TO_PASS) == 2


def test_a_swe_smith_row_becomes_an_instance() -> None:
    result = converted(published.swe_smith())
    row = result.instance
    assert row.repo == "swesmith/oauthlib__oauthlib.1fd52536"
    assert row.environment.test_timeout_s == 300
    assert row.image == "docker://jyangballin/swesmith.x86_64.oauthlib_1776_oauthlib.1fd52536"
    assert row.environment.setup_patch == PATCH
    assert row.patch == reversed_patch(PATCH)
    assert row.test_patch == ""
    assert row.FAIL_TO_PASS == ["tests/test_core.py::T::test_f"]
    assert result.left_out == ("tests/test_core.py::test_p[a",)
    named = published.swe_smith(image_name="other/swesmith.x86_64.a_1776_b.12345678")
    assert converted(named).instance.image == "other/swesmith.x86_64.a_1776_b.12345678"


def test_a_swe_rebench_row_says_all_that_is_needed() -> None:
    row = converted(published.rebench()).instance
    assert row.image == "swerebench/sweb.eval.x86_64.octo_1776_project-1234"
    assert row.license == "MIT License"
    assert row.environment.activate == "source /opt/miniconda3/bin/activate testbed"
    assert row.environment.repository == "/testbed"
    assert row.environment.pytest_arguments == [
        *("--no-header", "-rA", "--tb=line", "--color=no", "-p", "no:cacheprovider")
    ]
    by_log = converted(published.rebench(), "log").instance.environment
    assert by_log.test_command == f"{published.INSTALL_CONFIG['test_cmd']} tests/test_core.py"
    assert by_log.log_parser == "parse_log_pytest"
    compiled = published.rebench(patch=PATCH.replace("core.py", "core.pyx"))
    command = converted(compiled).instance.environment.test_command
    assert command.startswith("(pip install -e .[dev]) > /dev/null 2>&1; pytest --no-header")


def test_a_swe_rebench_v2_row_has_its_repository_by_name() -> None:
    row = converted(published.rebench_v2()).instance
    assert row.image == "docker.io/swerebenchv2/octo-project:1234-aaaaaaa"
    assert (row.environment.repository, row.environment.activate) == ("/project", "")
    assert row.environment.pytest_arguments == ["-rA"]


def test_a_swe_bench_live_row_is_run_as_it_says() -> None:
    row = converted(published.live()).instance
    assert row.image == "docker://starryzhang/sweb.eval.x86_64.octo_1776_project-1234"
    assert row.environment.test_files == ["tests/test_core.py", "tests/test_old.py"]
    several = published.live(test_cmds=["pytest -rA tests/a", "pytest -rA tests/b"])
    environment = converted(several).instance.environment
    assert environment.log_parser == "parse_log_pytest"
    assert environment.test_command.splitlines() == [
        "status=0",
        "pytest -rA tests/a || status=$?",
        "pytest -rA tests/b || status=$?",
        "exit $status",
    ]


def test_a_swe_bench_pro_row_has_its_image_by_tag_and_three_texts() -> None:
    row = converted(published.pro()).instance
    assert row.image == "docker://jefzda/sweap-images:octo.project-octo__project-1a"
    assert row.problem_statement == (
        "f() returns the wrong number.\n\nRequirements:\n- f() returns 2.\n\n"
        "New interfaces introduced:\nNo new interfaces."
    )
    assert row.FAIL_TO_PASS == ["tests/test_core.py::test_f"]
    assert row.environment.repository == "/app"
    by_log = converted(published.pro(), "log").instance.environment
    assert by_log.test_command == "pytest -rA tests/test_core.py"


@pytest.mark.parametrize("row", [published.swe_gym(), published.rebench(), published.r2e_gym()])
def test_nemo_gyms_rows_are_those_of_other_sets(row: Fields) -> None:
    given = {**row, "instance_id": "a__b-1", "base_commit": "a" * 40}
    assert converted(published.nemotron(given)) == converted(given)
    verifier = {"responses_create_params": {"metadata": {"docker_image": "x/y"}}}
    assert converted({**verifier, "verifier_metadata": {"instance_dict": given}}).instance.patch


def test_an_inner_row_counts_before_the_outer_one() -> None:
    row = {"patch": "", "license": "MIT", "instance": published.swe_gym()}
    instance = converted(row).instance
    assert (instance.patch, instance.license) == (PATCH, "MIT")


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("python -m pytest -rA -k 'a or b' tests/test_core.py", ["-rA", "-k", "a or b"]),
        ("pytest -rA tests/a && pytest -rA tests/b", []),
        ("pytest -rA $FILES", []),
        ("make test", []),
    ],
)
def test_the_recorder_takes_commands_that_only_run_pytest(
    command: str, arguments: list[str]
) -> None:
    environment = converted(published.live(test_cmds=[command])).instance.environment
    assert environment.pytest_arguments == arguments
    assert environment.test_command == ("" if arguments else command)


def without(fields: Fields, *names: str) -> Fields:
    return {name: value for name, value in fields.items() if name not in names}


TWICE = {"test_file_names": ["test_1.py", "test_2.py"]} | {
    "test_file_codes": [published.R2E_TESTS] * 2
}
MYPY = file_diff("test-data/unit/check-a.test", None, "[case testOne]\nx: int\n")
JSON = file_diff("tests/case.json", None, "{}\n")
WRONG: list[tuple[Fields, str]] = [
    (
        without(published.swe_bench(), "patch"),
        "patch is missing: the row has no patch; giv",
    ),
    (
        published.swe_bench(problem_statement=" "),
        "problem is missing: the row has no prob",
    ),
    ({**published.swe_bench(), "repo": {}}, "repo is not text: it is '{}'"),
    (published.rebench(docker_image=None), "image is missing: the row has no docker_image, image_"),
    (published.rebench_v2(install_config='{"test_cmd": "go test"}'), "parser is missing"),
    (published.live(test_cmds=[]), "test is missing: the row has no test_cmds; give --column test"),
    (published.pro(selected_test_files_to_run=None), "test is missing: give --column test=COLUMN"),
    (published.nemotron(published.swe_gym(patch="")), "its id), responses_create_params.metadata."),
    (published.swe_bench(FAIL_TO_PASS="[1"), "f2p is not a list of texts: it is '[1'"),
    (published.swe_bench(FAIL_TO_PASS="[1]"), "f2p is not a list of texts"),
    (published.swe_bench(FAIL_TO_PASS=[]), "f2p is empty"),
    (
        published.swe_bench("a/b"),
        "the row has no test_cmd, test_command; give --column test=C",
    ),
    (published.swe_bench(PASS_TO_PASS=["tests/test_core.py::test_f"]), "a test is in"),
    (published.swe_bench(FAIL_TO_PASS=["/x.py::f"]), "must be a path below"),
    (published.swe_gym("python/mypy", test_patch=MYPY), "its tests are cases in data"),
    (published.swe_bench(test_patch=JSON), "test_patch has no Python file"),
    (published.newer("", "parse_log_flask"), "script has no test command"),
    (published.newer("echo '", "parse_log_flask"), "cannot be converted: No closing"),
    (
        published.r2e_gym(expected_output_json="[]"),
        "expected_output_json is not an object",
    ),
    (
        published.newer("x", ""),
        "the row has no log_parser; give --column parser=COL",
    ),
    (published.skyrl({}) | {"instance": "[]"}, "patch is missing"),
    (published.skyrl({"repo": "a/b"}), "row 7 (its id), instance: patch is missing"),
    (published.r2e_gym(parsed_commit_content="{}"), "parsed_commit_content is invalid"),
    (published.r2e_gym(execution={"old_commit_res_stdout": ""}), "there is no result"),
    (published.r2e_gym(execution={"test_file_codes": []}), "differ in length"),
    (published.r2e_gym(execution=TWICE), "TestCore.test_f[1.5] is in 2"),
    (
        published.r2e_gym(
            execution={"test_file_names": ["test_1.py", "tornado_unittest_runner.py"]}
        ),
        "the tests have a runner of their own",
    ),
    (
        published.r2e_gym(expected_output_json='{"TestCore.test_g": "PASSED"}'),
        "no test passes only after the commit",
    ),
    (
        published.r2e_gym(
            parsed_commit_content=json.dumps(published.r2e_commit() | {"file_diffs": []})
        ),
        "the commit changes only tests",
    ),
    (published.swe_smith(patch="GIT binary patch\n"), "bug cannot be reversed"),
    (published.swe_smith(problem_statement=""), "problem is missing"),
    (
        published.swe_smith(FAIL_TO_PASS=["TestGo"]),
        "parser is missing",
    ),
    (published.swe_smith(FAIL_TO_PASS=["a.py::t[x"]), "parser is missing"),
]


@pytest.mark.parametrize(("fields", "message"), WRONG)
def test_a_wrong_row_is_refused_with_its_id_and_the_reason(fields: Any, message: str) -> None:
    with pytest.raises(RowError) as error:
        converted(fields)
    assert str(error.value).startswith("row 7 (its id)")
    assert message in str(error.value)
    assert error.value.reason in str(error.value)
