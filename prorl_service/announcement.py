"""Where services are: each writes a file when it answers, and removes it when it takes no more.

For jobs of a cluster, which learn on which node they run when they run there. A directory that all
nodes see is enough; a service is known by its file's name, whichever its address. A service that
was killed leaves its file, so that who reads one must ask whether it answers.
"""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from prorl_service.errors import ProRLError
from prorl_service.files import write_whole
from prorl_service.schemas import WireModel

SUFFIX = ".json"
EVERYWHERE = ("0.0.0.0", "::")


class Announced(WireModel):
    url: str


@dataclass(frozen=True, slots=True)
class Announcement:
    """`host`: by which others reach the service."""

    path: Path
    host: str

    def write(self, port: int) -> None:
        """Raises `OSError`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        write_whole(self.path, Announced(url=f"http://{host}:{port}").model_dump_json())

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def announcement(path: Path | None, host: str | None, listens_at: str) -> Announcement | None:
    """`host` None: where it listens or, if that is everywhere, by this machine's name.

    Raises `ProRLError` for a path that cannot be written or would not be found.
    """
    if path is None:
        return None
    if path.suffix != SUFFIX or path.name.startswith("."):
        raise ProRLError(f"{path} would not be found", hint=f"announce in a file NAME{SUFFIX}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
    except OSError as error:
        raise ProRLError(f"cannot announce in {path.parent}: {error.strerror}") from None
    own = socket.gethostname() if listens_at in EVERYWHERE else listens_at
    return Announcement(path, host or own)


def announced(directory: Path) -> Mapping[str, str]:
    """URLs by name, in the order of the names. What is no announcement is left out."""
    found = {}
    for path in sorted(directory.glob(f"*{SUFFIX}")):
        try:
            found[path.stem] = Announced.model_validate_json(path.read_text()).url
        except (OSError, ValidationError):
            continue
    return found
