"""Configuration of a server of environments: its name, its address, its key.

Secrets come from the environment only and never appear in logs or messages.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

from prorl_service.errors import ProRLError
from prorl_service.net.urls import is_base_url

_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class ServerSpec:
    KIND: ClassVar[str]
    """Product, as messages name it."""
    FORM: ClassVar[str]
    """Option that names a server, as an example for messages."""
    KEY_VARIABLE: ClassVar[str]
    """Prefix of the variable, before the name in capitals, with the server's bearer token."""

    name: str
    url: str = field(repr=False)
    """Base URL, without the path of a route."""
    key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Raises `ProRLError` for a bad name or URL."""
        if not _NAME.fullmatch(self.name):
            raise ProRLError(
                f"{self.name!r} cannot be the name of a server of {self.KIND}",
                hint=f"use lower-case letters, digits and '_': {self.FORM}",
            )
        if not is_base_url(self.url):
            raise ProRLError(
                f"{self} needs a URL: {self.FORM}",
                hint=f"a key goes into {self.KEY_VARIABLE}{self.name.upper()}",
            )

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.key is None else {"Authorization": f"Bearer {self.key}"}

    def __str__(self) -> str:
        return f"{self.KIND} server {self.name!r}"

    @classmethod
    def take(cls, servers: Sequence[str]) -> tuple[Self, ...]:
        """Parses `NAME=URL`. Takes the keys out of the environment, so that child processes do
        not inherit them. Raises `ProRLError`."""
        specs: dict[str, Self] = {}
        for text in servers:
            name, _, url = text.partition("=")
            if name in specs:
                raise ProRLError(f"{specs[name]} is named twice")
            key = os.environ.pop(cls.KEY_VARIABLE + name.upper(), None)
            specs[name] = cls(name, url.strip(), key)
        return tuple(specs.values())
