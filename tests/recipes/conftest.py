"""What the recipes' tests need is made before the first of them, where their limits do not run."""

import pytest

from tests.prepare import prepare


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.items and not session.config.option.collectonly:
        prepare(session.config.get_terminal_writer().line)
