"""Preparation for the recipes' tests, before the first of them and outside their time limits.

`PRORL_TEST_PREPARED` says that it was done: to look costs every process half a minute of CPU.
"""

import os
from importlib.metadata import PackageNotFoundError, version

import pytest

from tests.prepare import prepare

try:
    version("verl")
except PackageNotFoundError:  # `scripts/test-verl` has it
    collect_ignore = ["math_code/test_train_problems_verl.py", "swebench/test_train_verl.py"]


def pytest_collection_finish(session: pytest.Session) -> None:
    is_wanted = session.items and not session.config.option.collectonly
    if is_wanted and "PRORL_TEST_PREPARED" not in os.environ:
        prepare(session.config.get_terminal_writer().line)
