"""Secrets of a user: where they lie, and who may be sent them. No secret is in any message.

The bearer token of a user's services is made by the first of them, in a file that this user alone
can read; the later ones share it. Clients on the same machine find it there, and send it to
loopback only: other machines have other tokens.
"""

import ipaddress
import logging
import os
import re
import secrets
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from prorl_service.errors import ProRLError
from prorl_service.net.socket_owners import users_listening

log = logging.getLogger(__name__)

TOKEN_VARIABLE = "PRORL_TOKEN"
MIN_TOKEN_LENGTH = 16
DEFAULT_PORTS = {"http": 80, "https": 443}
OTHER_WAYS = f"or give a token: `--token-file FILE`, {TOKEN_VARIABLE}, `token` of a client"


def state_directory() -> Path:
    """Directory of this user for files that outlive a service. Raises `RuntimeError` for one
    without a home."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    return Path(state) / "prorl"


def own_token() -> str | None:
    """The token of this user's services; None if none has made it yet. Raises `ProRLError`."""
    try:
        path = state_directory() / "token"
        with path.open() as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read()
    except (FileNotFoundError, NotADirectoryError, RuntimeError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ProRLError(f"the token cannot be read: {error}", hint=OTHER_WAYS) from None
    if mode & 0o077:
        raise ProRLError(
            f"others than you may read the token in {path}",
            hint=f"remove it and start the service again, which makes another; {OTHER_WAYS}",
        )
    return checked_token(text, f"the token in {path}")


def make_own_token() -> str:
    """`own_token`, made if there is none. Raises `ProRLError`."""
    token = own_token()
    if token is None:
        try:
            _write_once(state_directory() / "token", secrets.token_hex(32))
        except (OSError, RuntimeError) as error:
            raise ProRLError(
                f"no token can be kept: {error}", hint=f"set XDG_STATE_HOME, {OTHER_WAYS}"
            ) from None
        token = own_token()
    if token is None:
        raise ProRLError("the token was removed just when it was made")
    return token


def _write_once(path: Path, text: str) -> None:
    """Writes the file whole or not at all, unless it exists: of two services that start together,
    one wins."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.parent.chmod(0o700)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{text}\n")
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            path.hardlink_to(draft)
    finally:
        draft.unlink(missing_ok=True)


def checked_token(text: str, name: str) -> str:
    """Raises `ProRLError` for what is unsafe or no HTTP header takes."""
    token = text.strip()
    if len(token) < MIN_TOKEN_LENGTH or not re.fullmatch(r"[A-Za-z0-9._~+/-]+=*", token):
        raise ProRLError(
            f"{name} needs at least {MIN_TOKEN_LENGTH} characters, of those that HTTP takes",
            hint="make one with `openssl rand -hex 32`",
        )
    return token


def authorization(url: str, token: str | None = None) -> dict[str, str]:
    """The header for the service at `url`. `token` None: that of `PRORL_TOKEN` or, on loopback,
    of this user's services, unless another user's server listens there; "": none. Raises
    `ProRLError`."""
    if token is None:
        token = os.environ.get(TOKEN_VARIABLE)
    if token is None and is_loopback(urlsplit(url).hostname or "") and not _is_anothers(url):
        token = own_token()
    return {"Authorization": f"Bearer {token}"} if token else {}


def _is_anothers(url: str) -> bool:
    """Whether a user listens there who has no business with the token, as far as can be known: any
    user may take a port before the service does."""
    address = urlsplit(url)
    try:
        port = address.port or DEFAULT_PORTS.get(address.scheme, 0)
        users = users_listening(address.hostname or "", port)
        owner = (state_directory() / "token").stat().st_uid
    except (OSError, RuntimeError, ValueError):
        return False
    others = users - {0, os.geteuid(), owner}
    if others:
        text = "the server at %s belongs to user %d: your token is not sent there"
        log.warning(text, url, min(others))
    return bool(others)


def is_loopback(host: str) -> bool:
    """Whether a name or an address is loopback's; no name is resolved."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def take_key(variable: str, file: Path | None, name: str) -> str | None:
    """The key in `file`, or in the environment, from which it is removed: children need no secrets.
    Raises `ProRLError`."""
    given = os.environ.pop(variable, None)
    if file is not None:
        try:
            given = file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ProRLError(f"the file {file} with {name} cannot be read: {error}") from None
    key = (given or "").strip()
    if file is not None and not key:
        raise ProRLError(f"the file {file} for {name} is empty")
    if key and not re.fullmatch(r"[\x21-\x7e]+", key):
        raise ProRLError(f"{name} has characters that no HTTP header takes")
    return key or None
