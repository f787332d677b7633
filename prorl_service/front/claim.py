"""A front's claim on a directory of services: one front at a time, as long as it renews the claim.

The claim is a file made with O_EXCL, since locks do not hold on every network file system. Its
front touches the file every `RENEW_S`. Another front takes over if that front's process is gone or,
where that cannot be seen from its machine, if nobody touches the file for `STALE_S`. Clocks of
different machines are never compared. A front that stalls that long finds another's claim, and ends
its work.
"""

import logging
import os
import re
import socket
import threading
import time
import uuid
import weakref
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pydantic import ValidationError

from prorl_service.errors import ProRLError
from prorl_service.front.discovery import DIRECTORY_MODE, check_trusted
from prorl_service.schemas import WireModel
from prorl_service.utils import processes
from prorl_service.utils.files import write_whole

log = logging.getLogger(__name__)

CLAIM, OWNER = ".front", ".owner"
RENEW_S = 2.0
STALE_S = 20.0
LOOK_S = 0.5
MAX_BYTES = 4096


class Claimant(WireModel):
    claim_id: str
    host: str
    pid: int
    machine: str
    """Id of the machine; equal where process ids mean the same processes."""
    process_start: str
    since: str

    def is_gone(self) -> bool | None:
        """Returns None if that cannot be seen from this machine."""
        if self.machine != processes.pid_scope():
            return None
        return not processes.is_running(self.pid, self.process_start)

    def __str__(self) -> str:
        return f"the front of process {self.pid} on {self.host}, since {self.since}"


def _own_claimant() -> Claimant:
    return Claimant(
        claim_id=uuid.uuid4().hex,
        host=socket.gethostname(),
        pid=os.getpid(),
        machine=processes.pid_scope(),
        process_start=str(processes.start_time(os.getpid())),
        since=datetime.now().astimezone().isoformat(sep=" ", timespec="seconds"),
    )


class DirectoryClaim:
    """Claim that is held from its construction to `release`, or to the end of the process."""

    def __init__(self, directory: Path, *, stale_s: float = STALE_S) -> None:
        """Raises `ProRLError` if another front has it, or if other users could write there."""
        _prepare(directory)
        self.directory = directory
        self._stale_s = stale_s
        self._path = directory / CLAIM
        self._own = _own_claimant()
        self._released = threading.Event()
        self.lost_to: str | None = None
        """Claimant that has taken over the directory, if one has."""
        try:
            self._acquire()
            self.owner = _owner(directory / OWNER)
        except OSError as error:
            raise ProRLError(f"{directory} cannot be claimed: {error.strerror}") from None
        self._renewing = threading.Thread(target=self._renew, name="claim", daemon=True)
        self._renewing.start()
        self._at_exit = weakref.finalize(self, _remove, self._path, self._own)

    def release(self) -> None:
        self._released.set()
        self._renewing.join()
        self._at_exit()

    def _acquire(self) -> None:
        """Raises `ProRLError`, `OSError`."""
        while not _create(self._path, self._own.model_dump_json()):
            found = _Observed.of(self._path)
            if found is None:
                continue
            if found.outlives(self._stale_s):
                raise ProRLError(
                    f"the services in {self.directory} belong to {found.name}",
                    hint="stop that front, or announce this one's services in another directory",
                )
            found.evict()

    def _renew(self) -> None:
        problem: str | None = None
        while self.lost_to is None and not self._released.wait(RENEW_S):
            try:
                self._renew_once()
                problem = None
            except OSError as error:  # the file system may come back
                if problem != error.strerror:
                    problem = error.strerror
                    log.warning("the claim %s cannot be renewed: %s", self._path, problem)

    def _renew_once(self) -> None:
        """Raises `OSError`."""
        content = _content(self._path)
        if content is None:  # removed by hand
            _create(self._path, self._own.model_dump_json())
        elif content == self._own.model_dump_json().encode():
            os.utime(self._path)
        elif content:  # an empty file is just being written
            self.lost_to = _name(content)


@dataclass(frozen=True, slots=True)
class _Observed:
    """Another front's claim, as it was when first seen."""

    path: Path
    content: bytes
    touched_at: int

    @classmethod
    def of(cls, path: Path) -> "_Observed | None":
        try:
            with path.open("rb") as file:  # opening makes a network file system ask its server
                return cls(path, file.read(MAX_BYTES), os.fstat(file.fileno()).st_mtime_ns)
        except FileNotFoundError:
            return None

    @property
    def name(self) -> str:
        return _name(self.content)

    def outlives(self, seconds: float) -> bool:
        """Returns whether its process lives or, where that cannot be seen, whether the claim is
        renewed within `seconds`."""
        claimant = _claimant(self.content)
        is_gone = claimant.is_gone() if claimant else None
        if is_gone is not None:
            return not is_gone
        log.warning("waiting up to %g s to see whether %s is alive", seconds, self.name)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(LOOK_S)
            now = _Observed.of(self.path)
            if now != self:
                return now is not None
        return False

    def evict(self) -> None:
        """Removes this claim, but not one that has replaced it."""
        aside = self.path.with_name(f"{CLAIM}.{uuid.uuid4().hex}")
        try:
            self.path.rename(aside)
        except FileNotFoundError:
            return
        if aside.read_bytes() != self.content:
            _create(self.path, aside.read_text())
        aside.unlink()


def _prepare(directory: Path) -> None:
    try:
        directory.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
        found = directory.stat()
    except OSError as error:
        raise ProRLError(f"{directory} cannot hold services: {error.strerror}") from None
    check_trusted(str(directory), found)


def _create(path: Path, content: str) -> bool:
    """Creates the file. Returns False if it exists. Raises `OSError`."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "w") as file:
        file.write(content)
    return True


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _claimant(content: bytes) -> Claimant | None:
    with suppress(ValidationError):
        return Claimant.model_validate_json(content)
    return None


def _name(content: bytes) -> str:
    return str(_claimant(content) or "an unidentified front")


def _owner(path: Path) -> str:
    """Returns the owner's name that the successive fronts of this directory share."""
    if not (known := _content(path)):
        host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())
        known = f"front-{host[:100]}-{uuid.uuid4().hex[:12]}".encode()
        write_whole(path, known.decode())
    return known.decode()


def _remove(path: Path, own: Claimant) -> None:
    try:
        if _content(path) == own.model_dump_json().encode():
            path.unlink()
    except OSError:  # it will soon be stale
        log.warning("the claim %s could not be removed", path)
