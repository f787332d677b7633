"""An orderly end of a command in the foreground: the first signal ends its work, the second the
process, with which its sandboxes end in any case.
"""

import asyncio
import os
import signal
from collections.abc import Callable
from types import FrameType

NOTE = b"prorl: ending the rollouts; a second signal does not wait\n"


class Stop:
    """Takes SIGINT and SIGTERM from when it is made."""

    def __init__(self) -> None:
        self.is_asked_for = False
        self._received: signal.Signals | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._do: Callable[[], object] = lambda: None
        # Python's handlers, not the loop's: an agent may block the loop.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._receive)

    def does(self, what: Callable[[], object]) -> None:
        """Sets what a stop does from now on, on the running loop."""
        self._loop, self._do = asyncio.get_running_loop(), what

    def ask(self) -> None:
        """Stops once the loop gets to it, if anything is left to be stopped."""
        self.is_asked_for = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._act)

    def _act(self) -> None:
        self._do()

    def end_process(self) -> None:
        """Ends it as the signal would have, if there was one."""
        if self._received is not None:
            signal.signal(self._received, signal.SIG_DFL)
            signal.raise_signal(self._received)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        is_first, self._received = self._received is None, signal.Signals(number)
        if not is_first or self._loop is None or self._loop.is_closed():
            self.end_process()
        os.write(2, NOTE)
        self.ask()
