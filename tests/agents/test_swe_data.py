"""The two ways to run tests: a task gives exactly one of them, completely."""

from typing import Any

import pytest
from pydantic import ValidationError

from prorl_service.agents.swe.data import SweEnvironment

BY_LOG = {"test_command": "./runtests", "log_parser": "parse_log_django"}
BY_PYTEST = {"test_files": ["tests"]}


@pytest.mark.parametrize("fields", [BY_LOG, BY_PYTEST])
def test_either_way_alone_is_accepted(fields: dict[str, Any]) -> None:
    assert SweEnvironment(**fields).model_dump(include=set(fields)) == fields


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({}, "give test_files for pytest, or test_command and log_parser"),
        ({"test_command": "./runtests"}, "go together"),
        ({"log_parser": "parse_log_django"}, "go together"),
        (BY_LOG | BY_PYTEST, "or test_files, pytest_arguments"),
        (BY_LOG | {"pytest_arguments": ["-x"]}, "or test_files, pytest_arguments"),
        (BY_LOG | {"import_paths": ["src"]}, "or test_files, pytest_arguments"),
    ],
)
def test_both_ways_no_way_or_half_a_way_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        SweEnvironment(**fields)
