"""Secrets of a user: where they are kept, and where they may be sent. No message has a secret.

A user's first service makes the bearer token, in a file that only this user can read; later ones
share it. Clients on the same machine find it there, and send it to loopback only: other machines
have other tokens.
"""

import ipaddress
import logging
import os
import re
import secrets
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, urlsplit

from prorl_service.errors import ProRLError
from prorl_service.net.socket_owners import users_listening

log = logging.getLogger(__name__)

TOKEN_VARIABLE = "PRORL_TOKEN"
MIN_TOKEN_LENGTH = 16
DEFAULT_PORTS = {"http": 80, "https": 443}
OTHER_WAYS = f"or pass a token: `--token-file FILE`, {TOKEN_VARIABLE}, `token` of a client"


def state_directory() -> Path:
    """Returns this user's directory for files that outlive a service. Raises `RuntimeError` for a
    user without a home."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    return Path(state) / "prorl"


def tokens_file() -> Path | None:
    """Returns the file of named tokens of this user's services; None for a user without a home."""
    with suppress(RuntimeError):
        return state_directory() / "tokens.json"
    return None


def own_token() -> str | None:
    """Returns the token of this user's services; None until one has made it. Raises
    `ProRLError`."""
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
            f"other users may read the token in {path}",
            hint=f"remove it and restart the service, which makes a new one; {OTHER_WAYS}",
        )
    return checked_token(text, f"the token in {path}")


def make_own_token() -> str:
    """Returns `own_token`; makes it if there is none. Raises `ProRLError`."""
    token = own_token()
    if token is None:
        try:
            _write_once(state_directory() / "token", secrets.token_hex(32))
        except (OSError, RuntimeError) as error:
            raise ProRLError(
                f"cannot store a token: {error}", hint=f"set XDG_STATE_HOME, {OTHER_WAYS}"
            ) from None
        token = own_token()
    if token is None:
        raise ProRLError("the token was removed as soon as it was made")
    return token


def _write_once(path: Path, text: str) -> None:
    """Writes the file completely or not at all, unless it exists: if two services start together,
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
    """Returns the token. Raises `ProRLError` if it is unsafe or not valid in an HTTP header."""
    token = text.strip()
    if len(token) < MIN_TOKEN_LENGTH or not re.fullmatch(r"[A-Za-z0-9._~+/-]+=*", token):
        raise ProRLError(
            f"{name} needs at least {MIN_TOKEN_LENGTH} characters, all valid in a bearer token",
            hint="make one with `openssl rand -hex 32`",
        )
    return token


def authorization(url: str, token: str | None = None) -> dict[str, str]:
    """Returns the header for the service at `url`. `token`: None for that of `PRORL_TOKEN` or, on
    loopback, of this user's services, unless another user's server listens there; "" for no token.
    Raises `ProRLError`."""
    if token is None:
        token = os.environ.get(TOKEN_VARIABLE)
    if token is None and is_loopback(urlsplit(url).hostname or "") and not _is_anothers(url):
        token = own_token()
    return {"Authorization": f"Bearer {token}"} if token else {}


def page_link(url: str, token: str | None) -> str:
    """Returns the address of a service's page with the token in its fragment, which no browser
    sends anywhere."""
    return f"{url.rstrip('/')}/" + (f"#token={quote(token, safe='')}" if token else "")


def _is_anothers(url: str) -> bool:
    """Returns whether a user without a right to the token listens there, as far as can be known:
    any user may take a port before the service does."""
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
    """Returns whether a name or an address is loopback's; resolves no names."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def take_key(variable: str, file: Path | None, name: str) -> str | None:
    """Returns the key in `file` or else in the environment, from which it removes the variable:
    children need no secrets. Raises `ProRLError`."""
    given = os.environ.pop(variable, None)
    if file is not None:
        given = _read(file, f"the file {file} with {name}")
    key = (given or "").strip()
    if file is not None and not key:
        raise ProRLError(f"the file {file} with {name} is empty")
    if key and not re.fullmatch(r"[\x21-\x7e]+", key):
        raise ProRLError(f"{name} has characters that are not valid in an HTTP header")
    return key or None


def take_token(file: Path | None, host: str, *, is_off: bool = False) -> str | None:
    """Returns the token in `file`, or in the environment, or else of this user's services; None if
    it `is_off`. Removes it from the environment: children need no secrets.

    Raises `ProRLError` if it `is_off` though `host` can be reached from elsewhere, and for what
    cannot be a token.
    """
    given = os.environ.pop(TOKEN_VARIABLE, None)
    if is_off:
        if file is not None:
            raise ProRLError("--token-file and --no-token contradict each other")
        if not is_loopback(host):
            raise ProRLError(
                f"{host} can be reached by others, who could then run tasks here",
                hint="leave out --no-token, or listen on 127.0.0.1",
            )
        return None
    if file is not None:
        given = _read(file, f"the token file {file}")
    return make_own_token() if given is None else checked_token(given, "the token")


def _read(file: Path, what: str) -> str:
    """Raises `ProRLError`."""
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ProRLError(f"{what} cannot be read: {error}") from None
