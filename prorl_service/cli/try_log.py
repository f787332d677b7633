"""The log of `prorl try`: warnings, and tracebacks that start in the author's own code."""

import logging
import sys
import traceback
from pathlib import Path

import prorl_service
from prorl_service.cli.screen import Screen
from prorl_service.rollouts import inflight

PACKAGE = str(Path(prorl_service.__file__).parent)
STYLES = {logging.WARNING: "yellow", logging.ERROR: "red", logging.CRITICAL: "red"}


def configure(*, verbose: bool) -> None:
    """Sends this process's log to standard error. `verbose` includes what `prorl serve` logs."""
    handler = _Handler(Screen(sys.stderr, full=True))
    handler.setFormatter(_Formatter("%(name)s: %(message)s" if verbose else "%(message)s"))
    if not verbose:
        handler.addFilter(_is_news)
    level = logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=level, handlers=[handler], force=True)


def show_cause(error: BaseException) -> None:
    """Prints where the author's code raised the exception that `error` reports, if it did."""
    if error.__cause__ is not None:
        Screen(sys.stderr, full=True).block("raised", own_traceback(error.__cause__), "red")


def own_traceback(error: BaseException) -> str:
    """Formats a traceback without the service's own frames at its start."""
    shown = traceback.TracebackException.from_exception(error)
    one: traceback.TracebackException | None = shown
    while one is not None:
        frames = list(one.stack)
        first = next((n for n, frame in enumerate(frames) if not _is_ours(frame.filename)), 0)
        one.stack = traceback.StackSummary.from_list(frames[first:])
        one = one.__cause__ or one.__context__
    return "".join(shown.format()).rstrip()


def _is_ours(filename: str) -> bool:
    return filename.startswith(PACKAGE)


def _is_news(record: logging.LogRecord) -> bool:
    """Leaves out what `inflight` logs: the verdict on the rollout says it too."""
    return record.name != inflight.__name__


class _Formatter(logging.Formatter):
    def formatException(self, ei: object) -> str:
        error = ei[1] if isinstance(ei, tuple) else None
        return own_traceback(error) if isinstance(error, BaseException) else ""


class _Handler(logging.Handler):
    def __init__(self, screen: Screen) -> None:
        super().__init__()
        self._screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        label, style = record.levelname.lower(), STYLES.get(record.levelno, "dim")
        self._screen.block(label, self.format(record), style)
