"""Preparation for the recipes' tests, before the first of them and outside their time limits."""

import pytest

from tests.prepare import prepare


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.items and not session.config.option.collectonly:
        prepare(session.config.get_terminal_writer().line)
