"""Configuration of a NeMo Gym resources server: its name, its address, its key.

Secrets come from the environment only and never appear in logs or messages.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from prorl_service.errors import ProRLError

KEY_VARIABLE = "PRORL_NEMO_GYM_KEY_"
"""Prefix of the variable, before the name in capitals, with the server's bearer token."""
FORM = "`--nemo-gym counter=http://host:port`"
_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class NemoGymSpec:
    name: str
    url: str = field(repr=False)
    """Base URL, without the path of a route."""
    key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Raises `ProRLError` for a bad name or URL."""
        if not _NAME.fullmatch(self.name):
            raise ProRLError(
                f"{self.name!r} cannot be the name of a NeMo Gym server",
                hint=f"use lower-case letters, digits and '_': {FORM}",
            )
        try:
            parts = urlsplit(self.url)
            is_usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            is_usable = False
        if not is_usable or "@" in parts.netloc or parts.query or parts.fragment:
            raise ProRLError(
                f"NeMo Gym server {self.name!r} needs a URL: {FORM}",
                hint=f"a key goes into {KEY_VARIABLE}{self.name.upper()}",
            )

    @property
    def headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json"}
        return headers if self.key is None else headers | {"Authorization": f"Bearer {self.key}"}

    def __str__(self) -> str:
        return f"NeMo Gym server {self.name!r}"


def take_specs(servers: Sequence[str]) -> tuple[NemoGymSpec, ...]:
    """Parses `NAME=URL`. Takes the keys out of the environment, so that child processes do not
    inherit them. Raises `ProRLError`."""
    specs: dict[str, NemoGymSpec] = {}
    for text in servers:
        name, _, url = text.partition("=")
        if name in specs:
            raise ProRLError(f"NeMo Gym server {name!r} is named twice")
        key = os.environ.pop(KEY_VARIABLE + name.upper(), None)
        specs[name] = NemoGymSpec(name, url.strip(), key)
    return tuple(specs.values())
