"""Heads of requests to the proxy: read strictly, and rewritten for the server.

Whatever two programs might read differently is refused: a server must find the one request, for the
one host, that the policy was asked about.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from prorl_service.sandbox.egress.addresses import read_address
from prorl_service.sandbox.egress.policy import MAX_NAME

_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_START = re.compile(rf"({_TOKEN}) ([\x21-\x7e\x80-\xff]+) (HTTP/1\.[01])")
_HEADER = re.compile(rf"({_TOKEN}):([\t\x20-\x7e\x80-\xff]*)")
_NAME = re.compile(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")
_LENGTH = re.compile(r"[0-9]{1,18}")
_REPLACED = frozenset({"connection", "host", "keep-alive", "te", "upgrade"})
_FRAMING = frozenset({"content-length", "transfer-encoding"})

Header = tuple[str, str]


class RefusedHead(Exception):
    """An answer of the proxy itself."""

    def __init__(self, status: str, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(frozen=True, slots=True)
class ProxyRequest:
    host: str
    port: int
    is_tunnel: bool
    head: bytes
    """Head for the server; empty for a tunnel."""
    length: int | None
    """Bytes of the body; None: it comes in chunks."""

    @classmethod
    def read(cls, head: bytes) -> "ProxyRequest":
        """Raises `RefusedHead`."""
        try:
            return cls._read(head.decode("latin-1").removesuffix("\r\n\r\n"))
        except ValueError as error:
            raise RefusedHead("400 Bad Request", f"not a request to a proxy: {error}") from None

    @classmethod
    def _read(cls, text: str) -> "ProxyRequest":
        first, *lines = text.split("\r\n")
        start = _START.fullmatch(first)
        if start is None:
            raise ValueError("its first line cannot be read")
        method, target, version = start.groups()
        headers = [_header(line) for line in lines]
        if method == "CONNECT":
            host, port = _authority(target)
            return cls(host, port, is_tunnel=True, head=b"", length=0)
        parts = urlsplit(target)
        if parts.scheme != "http":
            raise ValueError("it names no http:// address")
        host, port = _host(parts), 80 if parts.port is None else parts.port
        path = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
        told = [f"{method} {path} {version}", *_for_server(host, port, headers)]
        encoded = "\r\n".join([*told, "", ""]).encode("latin-1")
        return cls(host, port, is_tunnel=False, head=encoded, length=_length(headers, version))


def _header(line: str) -> Header:
    found = _HEADER.fullmatch(line)
    if found is None:
        raise ValueError(f"the header {line[:80]!r} cannot be read")
    return found[1], found[2].strip(" \t")


def _authority(target: str) -> tuple[str, int]:
    parts = urlsplit(f"//{target}")
    if parts.port is None or parts.netloc != target:
        raise ValueError("CONNECT needs HOST:PORT")
    return _host(parts), parts.port


def _host(parts: SplitResult) -> str:
    if "@" in parts.netloc:
        raise ValueError("its address has a user's name (RFC 9110, 4.2.4)")
    host = (parts.hostname or "").rstrip(".")
    if "%" not in host and (address := read_address(host)) is not None:
        return str(address)
    if len(host) > MAX_NAME or not _NAME.fullmatch(host):
        raise ValueError(f"{host[:80]!r} is no host name")
    return host


def _for_server(host: str, port: int, headers: Sequence[Header]) -> list[str]:
    """Returns the headers of the client without those for the proxy, and with the host that the
    policy was asked about (RFC 9112, 3.2.2)."""
    connection = ",".join(value for name, value in headers if name.lower() == "connection")
    named = {one.strip().lower() for one in connection.split(",")}
    # A client that could have its length removed could hide a second request in the body.
    dropped = _REPLACED | named - _FRAMING
    kept = [
        f"{name}: {value}"
        for name, value in headers
        if name.lower() not in dropped and not name.lower().startswith("proxy-")
    ]
    where = f"[{host}]" if ":" in host else host
    return [f"Host: {where}{'' if port == 80 else f':{port}'}", "Connection: close", *kept]


def _length(headers: Sequence[Header], version: str) -> int | None:
    framing = [(name.lower(), value) for name, value in headers if name.lower() in _FRAMING]
    if not framing:
        return 0
    if len(framing) > 1:
        raise ValueError("the length of its body is said twice")
    [(name, value)] = framing
    if name == "transfer-encoding" and value.lower() == "chunked" and version == "HTTP/1.1":
        return None
    if name == "content-length" and _LENGTH.fullmatch(value):
        return int(value)
    raise ValueError("the length of its body cannot be read")
