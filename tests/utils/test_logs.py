"""The lines of a log that count as errors."""

import io
import logging

import pytest

from prorl_service.utils import logs
from prorl_service.utils.logs import LogFormat


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_errors_are_found_in_either_format(
    log_format: LogFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.StringIO()
    monkeypatch.setattr("sys.stderr", written)
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", logging.INFO)
    logs.configure(log_format)
    log = logging.getLogger("some.module")
    log.info("ERROR is only a word here")
    log.warning("so is this")
    log.error("it failed")
    try:
        raise KeyError("g1")
    except KeyError:
        log.exception("and again")
    log.info("it went on")
    first, second = logs.errors(written.getvalue())
    assert "it failed" in first
    assert "and again" in second
    assert "KeyError: 'g1'" in second


def test_a_traceback_that_no_logger_wrote_is_found() -> None:
    log = 'before\nTraceback (most recent call last):\n  File "x"\n    go()\nOSError: gone\nafter\n'
    assert logs.errors(log) == ["Traceback: OSError: gone"]
