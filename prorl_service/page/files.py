"""The page's files, with their HTTP headers. Nothing here sends them."""

import gzip
import hashlib
import re
from functools import lru_cache
from importlib import resources
from importlib.resources.abc import Traversable

from prorl_service.errors import ProRLError

STATIC: Traversable = resources.files(__package__).joinpath("static")
INDEX = "index.html"
VENDOR = tuple(
    f"vendor/{name}"
    for name in ("htm-preact.js", "uplot.js", "uplot.css", "ansi_up.js", "LICENSES.txt")
)
"""Third-party files and their licences."""

NAME = re.compile(r"(vendor/)?[A-Za-z][\w-]*\.[a-z]+", re.ASCII)
MEDIA_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}


class PageIncomplete(ProRLError):
    """Third-party files of the page are missing: a checkout that was not set up."""

    answer_status = 503


def read(name: str) -> tuple[bytes, str] | None:
    """Returns content and media type; None unless the page has such a file. The file is read each
    time, so that a browser shows its author's changes immediately."""
    if NAME.fullmatch(name) is None:
        return None
    media_type = MEDIA_TYPES.get(name.rpartition(".")[2])
    file = STATIC.joinpath(name)
    return (file.read_bytes(), media_type) if media_type and file.is_file() else None


def etag(content: bytes) -> str:
    """Returns a digest of the content: an installed file's times say nothing about its content."""
    return f'"{hashlib.sha256(content).hexdigest()[:32]}"'


@lru_cache(maxsize=64)
def compressed(content: bytes) -> bytes:
    """Returns the content as gzip: a third of the bytes."""
    return gzip.compress(content, mtime=0)


def check_complete() -> None:
    """Raises `PageIncomplete` unless the third-party files are there."""
    missing = [name for name in VENDOR if not STATIC.joinpath(name).is_file()]
    if missing:
        raise PageIncomplete(
            f"the page lacks {', '.join(missing)}",
            hint="run scripts/setup-page in the checkout, or install the wheel",
        )
