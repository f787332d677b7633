"""Access to a file of weights: opened where the engine can read it, else fetched once per host.

The workers of an engine share one download: the first one fetches it into a file of the temporary
directory (TMPDIR), which is locked while it is used, and the others wait for it. Plug-ins of
engines use it; the service does not, and it knows none of the engines.
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

SILENCE_S = 60.0
"""Longest time without a byte, the connection's included."""
ABANDONED_S = 60.0
"""Age of a file after which no engine is just about to lock it."""
PIECE_BYTES = 4 * 2**20
PREFIX = "prorl-weights-"


class FetchFailed(RuntimeError):
    """The weights did not arrive whole; the engine has not touched its own."""


@dataclass(frozen=True)
class Offer:
    path: str
    """File on the service's host, under a name that no other file has."""
    size: int
    """Size in bytes."""
    url: str


class Fetch:
    """Fetch that begins immediately. A download continues in a thread, which `file` waits for."""

    def __init__(self, offer: Offer) -> None:
        """Raises `FetchFailed` if the file cannot be opened or asked for."""
        self._offer = offer
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None
        self._spool: Path | None = None
        self._file = _shared(offer) or self._spooled()

    def file(self) -> BinaryIO:
        """Returns the whole file. Raises `FetchFailed`."""
        if self._thread is not None:
            self._thread.join()
        size = os.fstat(self._file.fileno()).st_size
        if self._error is not None or size != self._offer.size:
            reason = self._error or f"{size} of {self._offer.size} bytes arrived"
            raise FetchFailed(f"prorl: weights from {self._offer.url}: {reason}")
        return self._file

    def close(self) -> None:
        """Removes the download. All workers have opened it by now, and keep it open."""
        if self._thread is not None:
            self._thread.join()
        if self._spool is not None:
            self._spool.unlink(missing_ok=True)
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
                answer = _asked_for(self._offer)
            except BaseException:
                self._file = file
                self.close()
                raise
            self._begin(lambda: _download(answer, file))
        return file

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


def _asked_for(offer: Offer) -> HTTPResponse:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        answer: HTTPResponse = direct.open(offer.url, timeout=SILENCE_S)
    except OSError as error:
        raise FetchFailed(
            f"prorl: {offer.path} is not on this host, and {offer.url} failed: {error}"
        ) from error
    return answer


def _download(answer: HTTPResponse, file: BinaryIO) -> None:
    file.truncate(0)
    piece = memoryview(bytearray(PIECE_BYTES))
    with answer:
        while length := answer.readinto(piece):
            file.write(piece[:length])
    fcntl.flock(file, fcntl.LOCK_SH)


def _sweep(directory: Path) -> None:
    """Removes files that killed engines left: old, and not locked."""
    newest = time.time() - ABANDONED_S
    for path in directory.glob(f"{PREFIX}*"):
        with suppress(OSError), path.open("rb") as file:
            if os.fstat(file.fileno()).st_mtime < newest:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
