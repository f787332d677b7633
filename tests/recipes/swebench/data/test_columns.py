"""Columns of rows: named by hand, by a layout, and told from each other."""

import json

import pytest

from prorl_service.rewards.swe.log_reader import swebench_module
from recipes.common.data.fields import RowError
from recipes.swebench.data.columns import DATA
from tests.recipes.swebench.data import published
from tests.recipes.swebench.data.published import PATCH, TEST_PATCH, converted

PACKAGES = ("swebench.harness", "swebench.harness.log_parsers")


def test_any_columns_can_be_named() -> None:
    row = {
        "name": "x-1",
        "text": "f() returns the wrong number.",
        "fix": PATCH,
        "tests": {"diff": TEST_PATCH, "fixed": '["tests/test_core.py::test_f"]', "kept": []},
        "run": json.dumps({"command": "make check", "reader": "parse_log_pytest_v2"}),
        "tag": "Octo__X",
    }
    instance = converted(
        row,
        id="name",
        problem="text",
        patch="fix",
        test_patch="tests.diff",
        f2p="tests.fixed",
        p2p="tests.kept",
        test="run.command",
        parser="run.reader",
        image="=me/{tag|_}:{name}",
        activate="=export A=${A:-} B=${B}",
        repository="=/srv/x",
        timeout="=60",
    ).instance
    assert instance.instance_id == "x-1"
    assert instance.PASS_TO_PASS == []
    assert instance.image == "me/octo_x:x-1"
    environment = instance.environment
    assert (environment.test_command, environment.log_parser) == (
        "make check",
        "parse_log_pytest_v2",
    )
    assert (environment.repository, environment.test_timeout_s) == ("/srv/x", 60)
    assert environment.activate == "export A=${A:-} B=${B}"


def test_a_given_column_replaces_that_of_the_layout() -> None:
    row = published.rebench(other="me/mine:1")
    assert converted(row, image="other").instance.image == "me/mine:1"
    with pytest.raises(RowError, match="image is missing: the row has no mine; give --column ima"):
        converted(row, image="mine")


@pytest.mark.parametrize("parser", ["parse_log_gotest", "def parser(log):\n    return {}"])
def test_a_log_parser_that_is_not_ours_is_refused_by_name(parser: str) -> None:
    row = published.live(test_cmds=["go test ./..."], log_parser=parser)
    with pytest.raises(RowError, match=rf"no such log parser here: '{parser[:10]}") as error:
        converted(row)
    assert "--column parser==parse_log_pytest" in str(error.value)
    assert error.value.reason == "no such log parser here"


def test_the_parsers_of_layouts_are_those_of_the_package() -> None:
    module = swebench_module("swebench.harness.log_parsers.python", without=PACKAGES)
    assert {*DATA.parsers.known} == {name for name in vars(module) if name[:10] == "parse_log_"}
    assert {*DATA.parsers.renamed.values()} <= {*DATA.parsers.known}


def test_each_layout_has_known_columns_and_a_source() -> None:
    for layout in DATA.layouts.values():
        assert layout.columns.keys() <= DATA.columns.keys()
        assert layout.source
