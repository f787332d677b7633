"""Calls of a tool that does one at a time: the others wait, and all may be stopped."""

from collections import deque
from functools import partial
from typing import Any

from .loop import Loop
from .output import HeadTail, with_notes
from .request import Request

TIMED_OUT = "timed out"
CANCELLED = "cancelled"


class OneAtATime:
    awaited: str
    """Name of what a waiting call waits for."""

    def __init__(self, loop: Loop, *, output_bytes: int) -> None:
        self._loop = loop
        self._output_bytes = output_bytes
        self._output = HeadTail(output_bytes)
        self._waiting: deque[Request] = deque()
        self._request: Request | None = None
        self._ending = ""

    def _begin(self, request: Request) -> None:
        """Runs the call, which is `_request` until `_finished`."""
        raise NotImplementedError

    def _interrupt(self) -> None:
        """Begins to end the call that runs, for the reason `_ending`."""
        raise NotImplementedError

    def _unstarted_data(self, *, timed_out: bool) -> dict[str, Any]:
        """Returns the data of a call that was stopped before it began."""
        raise NotImplementedError

    def _accept(self, request: Request, *, elapsed_s: float = 0.0) -> None:
        """Queues a call. `elapsed_s` is the part of its time that is used already."""
        self._waiting.append(request)
        deadline = request.deadline - elapsed_s
        self._loop.set_timer(request, deadline, partial(self._stop, request, TIMED_OUT))
        request.on_cancel(partial(self._stop, request, CANCELLED))
        self._next()

    def _next(self) -> None:
        if self._request is None and self._waiting:
            self._request = self._waiting.popleft()
            self._ending = ""
            self._begin(self._request)

    def append(self, data: bytes) -> None:
        self._output.append(data)
        if self._request is not None:
            self._request.stream(data)

    def _stop(self, request: Request, reason: str) -> None:
        """Begins to end the call, which is running or waiting."""
        if request is not self._request:
            self._waiting.remove(request)
            self._loop.clear_timer(request)
            note = f"{_stop_note(reason, request)}, before {self.awaited} was free"
            data = self._unstarted_data(timed_out=reason == TIMED_OUT)
            request.reply_tool(with_notes("", [note]), is_error=True, data=data)
        elif not self._ending:
            self._ending = reason
            self._interrupt()

    def _finished(self) -> tuple[Request, HeadTail, list[str]]:
        """Returns the call that has ended, its output, and a note if it was stopped. The caller
        answers it, then calls `_next`."""
        request, output = self._request, self._output
        assert request is not None
        self._loop.clear_timer(request)
        self._request, self._output = None, HeadTail(self._output_bytes)
        return request, output, [_stop_note(self._ending, request)] if self._ending else []


def _stop_note(reason: str, request: Request) -> str:
    return f"{reason} after {request.timeout_s:g} s" if reason == TIMED_OUT else reason
