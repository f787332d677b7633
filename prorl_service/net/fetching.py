"""Access to a file of weights: opened where the engine can read it, else fetched once per host.

The workers of an engine share one download: the first one fetches it into a file of the temporary
directory (TMPDIR), which is locked while it is used, and the others wait for it. A download stays
open, without a name, as the base of the next one, of which then only the difference is fetched.
Engines and their plug-ins use it; it knows none of them.
"""

import fcntl
import os
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from http.client import HTTPResponse
from pathlib import Path
from typing import BinaryIO

from prorl_service.utils import differences

SILENCE_S = 60.0
"""Longest time without a byte, the connection's included."""
ABANDONED_S = 60.0
"""Age of a file after which no engine is just about to lock it."""
PIECE_BYTES = 4 * 2**20
PREFIX = "prorl-weights-"
DIFFERENCE = ".difference"
"""Ending of the URL of a difference, after that of the whole file."""


class FetchFailed(RuntimeError):
    """The weights did not arrive whole; the engine has not touched its own."""


@dataclass(frozen=True)
class Offer:
    path: str
    """File on the service's host, under a name that no other file has."""
    size: int
    """Size in bytes."""
    url: str
    base: str = ""
    """Name of the file from which a difference is offered, too; "" if none is."""


class Fetches:
    """The fetches of an engine's process, one after the other."""

    def __init__(self) -> None:
        self._current: Fetch | None = None
        self._last: Fetch | None = None
        """Fetch of the last whole model, whose file is the base of differences."""

    def begin(self, offer: Offer) -> None:
        """Ends the fetch before. Raises `FetchFailed`."""
        self.end()
        self._current = Fetch(offer, self._last)

    def file(self) -> BinaryIO:
        """Returns the file that was offered. Raises `FetchFailed`: the next is fetched whole."""
        if self._current is None:
            raise FetchFailed("prorl: no weights were offered")
        try:
            return self._current.file()
        except FetchFailed:
            self.close()
            raise

    def keep(self) -> None:
        """Makes a download, whose model is in place, the base of the next."""
        if self._current is not None:
            fetch, self._current = self._current, self._last
            self.end()
            self._last = fetch if fetch.keep() else None

    def end(self) -> None:
        """Closes the file that was offered."""
        if self._current is not None:
            self._current.close()
            self._current = None

    def close(self) -> None:
        self.end()
        self._current, self._last = self._last, None
        self.end()


class Fetch:
    """Fetch that begins immediately. A download continues in a thread, which `file` waits for."""

    def __init__(self, offer: Offer, before: "Fetch | None" = None) -> None:
        """`before`: fetch whose file stays open until this one is over. Raises `FetchFailed` if the
        file cannot be opened or asked for."""
        self._offer = offer
        self._base: BinaryIO | None = None
        if before is not None and Path(before._offer.path).name == offer.base:
            self._base = before._file
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None
        self._spool: Path | None = None
        self._file: BinaryIO = _shared(offer) or self._spooled()

    def file(self) -> BinaryIO:
        """Returns the whole file. Raises `FetchFailed`."""
        if self._thread is not None:
            self._thread.join()
        size = os.fstat(self._file.fileno()).st_size
        if self._error is not None or size != self._offer.size:
            reason = self._error or f"{size} of {self._offer.size} bytes arrived"
            raise FetchFailed(f"prorl: weights from {self._offer.url}: {reason}")
        return self._file

    def keep(self) -> bool:
        """Removes the download's name. All workers have opened it by now, and keep it open. Closes
        the service's own file and returns False: to keep that would fill the service's disk."""
        if self._thread is not None:
            self._thread.join()
        if self._spool is None:
            self._file.close()
        else:
            self._spool.unlink(missing_ok=True)
        return self._spool is not None

    def close(self) -> None:
        self.keep()
        self._file.close()

    def _spooled(self) -> BinaryIO:
        directory = Path(tempfile.gettempdir())
        _sweep(directory)
        self._spool = directory / f"{PREFIX}{sha256(self._offer.url.encode()).hexdigest()[:32]}"
        file = os.fdopen(os.open(self._spool, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another worker of this host downloads it, or has done so
            self._begin(lambda: fcntl.flock(file, fcntl.LOCK_SH))
        else:
            try:
                work = self._patch(file) or self._download(file)
            except BaseException:
                self._file = file
                self.close()
                raise
            self._begin(work)
        return file

    def _download(self, file: BinaryIO) -> Callable[[], None]:
        """Asks for the whole file. Raises `FetchFailed`."""
        offer = self._offer
        try:
            answer = _asked_for(offer.url)
        except OSError as error:
            raise FetchFailed(
                f"prorl: {offer.path} is not on this host, and {offer.url} failed: {error}"
            ) from error

        def work() -> None:
            _receive(answer, file)
            fcntl.flock(file, fcntl.LOCK_SH)

        return work

    def _patch(self, file: BinaryIO) -> Callable[[], None] | None:
        """Asks for a difference; None if there is none from the file that was kept."""
        base = self._base
        if base is None:
            return None
        try:
            answer = _asked_for(self._offer.url + DIFFERENCE)
        except OSError:
            return None

        # The service pauses the engine once the connection is closed: when the file is whole.
        connection = os.dup(answer.fileno())

        def work() -> None:
            try:
                with tempfile.TemporaryFile() as difference:
                    _receive(answer, difference)
                    difference.seek(0)
                    file.truncate(0)
                    differences.apply(base, difference, file)
            except (OSError, differences.BrokenDifference):
                file.truncate(0)  # its size may be right
                self._download(file)()
            finally:
                os.close(connection)
            fcntl.flock(file, fcntl.LOCK_SH)

        return work

    def _begin(self, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except Exception as error:
                self._error = error

        self._thread = threading.Thread(target=run, name="prorl weights", daemon=True)
        self._thread.start()


def _shared(offer: Offer) -> BinaryIO | None:
    """Opens the service's own file, if this host has its file system."""
    path = Path(offer.path)
    with suppress(OSError):
        if path.stat().st_size == offer.size:
            return path.open("rb", buffering=0)
    return None


def _asked_for(url: str) -> HTTPResponse:
    """Raises `OSError`."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    answer: HTTPResponse = direct.open(url, timeout=SILENCE_S)
    return answer


def _receive(answer: HTTPResponse, file: BinaryIO) -> None:
    """Makes what has come, all or a part, the content of the file."""
    file.seek(0)
    file.truncate(0)
    piece = memoryview(bytearray(PIECE_BYTES))
    with answer:
        while length := answer.readinto(piece):
            file.write(piece[:length])


def _sweep(directory: Path) -> None:
    """Removes files that killed engines left: old, and not locked."""
    newest = time.time() - ABANDONED_S
    for path in directory.glob(f"{PREFIX}*"):
        with suppress(OSError), path.open("rb") as file:
            if os.fstat(file.fileno()).st_mtime < newest:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
