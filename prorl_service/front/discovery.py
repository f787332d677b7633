"""Service discovery by a shared directory: a service writes a file when it is ready and removes it
when it starts to drain.

For cluster jobs, which learn their node only when they run there. A directory that all nodes see is
enough; a service is known by the name of its file, whatever its address. A killed service leaves
its file behind, so that readers must ask whether the service answers.

Readers send their token to announced addresses, so they trust only files that root or their own
user could have written.
"""

import logging
import os
import socket
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import httpx
from pydantic import AfterValidator, ValidationError

from prorl_service.errors import ProRLError
from prorl_service.schemas import WireModel
from prorl_service.utils.files import write_whole

log = logging.getLogger(__name__)

SUFFIX = ".json"
EVERYWHERE = ("0.0.0.0", "::")
MAX_BYTES = 4096
"""Size of the largest file that is read."""
MAX_PORT = 65_535
FILE_MODE, DIRECTORY_MODE = 0o644, 0o700


def _usable(url: str) -> str:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(f"{url!r} is not a URL: {error}") from None
    has_address = parsed.host and (parsed.port or 0) <= MAX_PORT
    is_bare = not parsed.userinfo and not parsed.query and parsed.path in ("", "/")
    if parsed.scheme not in ("http", "https") or not has_address or not is_bare:
        raise ValueError(f"{url!r} is not of the form http://HOST:PORT")
    return url


class Announced(WireModel):
    url: Annotated[str, AfterValidator(_usable)]


@dataclass(frozen=True, slots=True)
class Announcement:
    """The file that announces a service. `host`: the service's address for others."""

    path: Path
    host: str

    def write(self, port: int) -> None:
        """Raises `OSError`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        content = Announced(url=f"http://{host}:{port}").model_dump_json()
        write_whole(self.path, content, mode=FILE_MODE)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def announcement(path: Path | None, host: str | None, listens_at: str) -> Announcement | None:
    """Returns the announcement in `path`. `host` defaults to `listens_at`, or to this machine's
    name if that is every address.

    Raises `ProRLError` for a path that cannot be written or would not be found.
    """
    if path is None:
        return None
    if path.suffix != SUFFIX or path.name.startswith("."):
        raise ProRLError(f"{path} would not be found", hint=f"announce in a file NAME{SUFFIX}")
    try:
        path.parent.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
    except OSError as error:
        raise ProRLError(f"cannot announce in {path.parent}: {error.strerror}") from None
    own = socket.gethostname() if listens_at in EVERYWHERE else listens_at
    return Announcement(path, host or own)


# --- reading ------------------------------------------------------------------------------------


class Announcements:
    """Services that a directory announces, read again at each `look`. Logs each problem once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._found: Mapping[str, str] = {}
        self._problems: dict[Path, str] = {}

    def look(self) -> Mapping[str, str]:
        """Returns URLs by name, in the order of the names, of files that are announcements."""
        problems: dict[Path, str] = {}
        try:
            paths = _files(self._directory)
        except OSError as error:  # not a reason to leave services that answer
            problems[self._directory] = f"it cannot be read: {error.strerror}"
        else:
            urls = ((path.stem, _url(path, problems)) for path in paths)
            self._found = {name: url for name, url in urls if url is not None}
        for path, problem in problems.items():
            if self._problems.get(path) != problem:
                log.warning("%s is not used: %s", path, problem)
        self._problems = problems
        return self._found


def _files(directory: Path) -> list[Path]:
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return []
    return [directory / one for one in names if one.endswith(SUFFIX) and one[0] != "."]


def _url(path: Path, problems: dict[Path, str]) -> str | None:
    try:
        return _read(path)
    except FileNotFoundError:  # it was removed meanwhile
        return None
    except OSError as error:
        problems[path] = f"it cannot be read: {error.strerror}"
    except ValidationError as error:
        problems[path] = f"it announces no service: {error.errors()[0]['msg']}"
    except ProRLError as error:
        problems[path] = f"{error.message} ({error.hint})" if error.hint else error.message
    return None


def _read(path: Path) -> str:
    """Raises `OSError`, `ValidationError`, `ProRLError`."""
    # A pipe that nothing writes to must not block the reader.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ProRLError("it is not a regular file")
        check_trusted("it", found)
        content = os.read(descriptor, MAX_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(content) > MAX_BYTES:
        raise ProRLError(f"it has more than {MAX_BYTES} bytes")
    return Announced.model_validate_json(content).url


def check_trusted(name: str, found: os.stat_result) -> None:
    """Raises `ProRLError` if users other than root and this one could have written it."""
    if found.st_uid not in (0, os.getuid()):
        raise ProRLError(
            f"{name} belongs to user {found.st_uid}, who could have the token sent anywhere",
            hint="run the front and all services as one user",
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ProRLError(
            f"{name} can be written by other users, who could have the token sent anywhere",
            hint="chmod go-w",
        )
