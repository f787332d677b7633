"""Logs as text, or as JSON lines that name the rollout during whose work they were written.

A stage sets `rollout_id` to the rollout that it works on, and every logger below reports it.
"""

import json
import logging
import re
import time
from contextvars import ContextVar
from typing import Literal

LogFormat = Literal["text", "json"]

rollout_id: ContextVar[str | None] = ContextVar("rollout_id", default=None)


def configure(log_format: LogFormat) -> None:
    """Configures logging of the whole process."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if log_format == "json" else _TextFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a front asks each service every second


class _TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")


class JsonLines(logging.Formatter):
    """One object a line: `time` (UTC), `level`, `logger`, `message`, and, if there are any,
    `rollout_id` and `traceback`."""

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "rollout_id": rollout_id.get(),
            "traceback": self.formatException(record.exc_info) if record.exc_info else None,
        }
        return json.dumps({key: value for key, value in line.items() if value is not None})


_ERROR = re.compile(r'[-\d]+ [:,\d]+ (ERROR|CRITICAL) |\{.*"level": "(error|critical)"')
_TRACEBACK = "Traceback (most recent call last)"


def errors(log: str) -> list[str]:
    """Returns the errors in a log of either format. Only the last line of a traceback is kept,
    appended to the line that it belongs to, if there is one."""
    found: list[str] = []
    lines = iter(log.splitlines())
    is_error = False
    for line in lines:
        if _TRACEBACK in line and not line.startswith("{"):
            end = next((one for one in lines if re.match(r"[^\s]", one)), "")
            found.append(f"{found.pop() if is_error else 'Traceback'}: {end}")
        elif is_error := bool(_ERROR.match(line)):
            found.append(line)
    return found
