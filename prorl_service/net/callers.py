"""Those who may call a service: its owner, and people with named tokens, each with a role.

Named tokens are in a file that has their digests alone. It is read again when it changes, so that a
service refuses a token as soon as it is removed. Nothing here knows the routes.
"""

import fcntl
import hashlib
import hmac
import logging
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, TypeAdapter, ValidationError

from prorl_service.errors import ProRLError
from prorl_service.utils.files import write_whole

NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,59}"
PREFIX = "prorl-"

log = logging.getLogger(__name__)


class Role(StrEnum):
    READ = "read"
    """Looks at everything, and changes nothing."""
    SUBMIT = "submit"
    """Also submits rollouts, and cancels and acknowledges its own."""
    ADMIN = "admin"
    """May do all, with weights and engines, too: what a trainer needs."""


@dataclass(frozen=True, slots=True)
class Caller:
    name: str | None
    """None: the owner of the service."""
    role: Role

    def __str__(self) -> str:
        return self.name or "the owner"


OWNER = Caller(None, Role.ADMIN)


class NamedToken(BaseModel):
    role: Role
    digest: str
    added_at: float
    """Unix time in seconds."""


TOKENS: TypeAdapter[dict[str, NamedToken]] = TypeAdapter(dict[str, NamedToken])


class TokenFile:
    """Named tokens by name. Commands change it; services read it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, name: str, role: Role) -> str:
        """Returns a new token, which is kept nowhere. Raises `ProRLError` for a name that is taken
        or not valid."""
        if not re.fullmatch(NAME, name):
            raise ProRLError(
                f"{name!r}: a name is letters, digits, '.', '_' and '-', at most 60 characters"
            )
        token = PREFIX + secrets.token_hex(32)
        with self._changing() as tokens:
            if name in tokens:
                raise ProRLError(
                    f"there is a token of {name} already",
                    hint="remove that first: `prorl token remove`",
                )
            tokens[name] = NamedToken(role=role, digest=digest_of(token), added_at=time.time())
        return token

    def remove(self, name: str) -> None:
        """Raises `ProRLError` if there is none."""
        with self._changing() as tokens:
            if tokens.pop(name, None) is None:
                known = ", ".join(tokens) or "none"
                raise ProRLError(f"there is no token of {name}", hint=f"there are: {known}")

    def read(self) -> dict[str, NamedToken]:
        """Raises `ProRLError` for a file that cannot be read."""
        try:
            return TOKENS.validate_json(self.path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValidationError) as error:
            problem = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
            hint = "restore it, or remove it and add the tokens again: `prorl token add`"
            said = f"the tokens in {self.path} cannot be read: {problem}"
            raise ProRLError(said, hint=hint) from None

    @contextmanager
    def _changing(self) -> Iterator[dict[str, NamedToken]]:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self.path.with_name(f".{self.path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            tokens = self.read()
            yield tokens
            write_whole(self.path, TOKENS.dump_json(tokens, indent=1).decode(), mode=0o600)


class TokenCallers:
    """Finds the caller of a token."""

    def __init__(self, owners: str, file: Path | None = None) -> None:
        """`owners`: the owner's token. `file`: of named tokens; it may come later. Raises
        `ProRLError` if it cannot be read."""
        self._owners = digest_of(owners)
        self._file = file
        self._seen: tuple[int, int, int] | None = None
        self._named: dict[str, Caller] = {}
        self._is_broken = False
        self._refresh()

    def find(self, token: str) -> Caller | None:
        # Digests, because compare_digest leaks the length of its arguments by its time.
        digest = digest_of(token)
        if hmac.compare_digest(digest, self._owners):
            return OWNER
        try:
            self._refresh()
        except ProRLError as error:
            # Nobody with a name may call while it is unknown who was removed.
            if not self._is_broken:
                log.error("nobody with a named token may call: %s", error)
            self._is_broken, self._named, self._seen = True, {}, None
        return self._named.get(digest)

    def _refresh(self) -> None:
        if self._file is None:
            return
        try:
            found = self._file.stat()
            seen = (found.st_ino, found.st_mtime_ns, found.st_size)
        except FileNotFoundError:
            seen = None
        if seen != self._seen:
            tokens = TokenFile(self._file).read()
            self._named = {one.digest: Caller(name, one.role) for name, one in tokens.items()}
            self._seen, self._is_broken = seen, False


def digest_of(token: str) -> str:
    """Tokens are random and long: a plain digest tells nothing of them."""
    return hashlib.sha256(token.encode()).hexdigest()
