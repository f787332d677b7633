"""Attacks on the proxy of a sandbox, as tables: each row either reaches what it must not, or does
not."""

from dataclasses import dataclass

PRIVATE_HOSTS = {
    "loopback by name": "localhost",
    "loopback": "127.0.0.1",
    "loopback, other address": "127.0.0.2",
    "loopback, short": "127.1",
    "loopback, decimal": "2130706433",
    "loopback, hexadecimal": "0x7f000001",
    "loopback, octal": "0177.0.0.1",
    "loopback, trailing dot": "127.0.0.1.",
    "this host": "0.0.0.0",
    "this host, short": "0",
    "loopback, IPv6": "[::1]",
    "this host, IPv6": "[::]",
    "mapped": "[::ffff:127.0.0.1]",
    "mapped, hexadecimal": "[::ffff:7f00:1]",
    "site-local": "[fec0::1]",
    "unique local": "[fd00::1]",
    "link-local": "[fe80::1]",
    "multicast": "239.1.2.3",
    "multicast, global": "224.0.1.1",
    "multicast, IPv6": "[ff0e::1]",
    "metadata": "169.254.169.254",
    "metadata of Azure": "168.63.129.16",
    "metadata of Alibaba": "100.100.100.200",
    "private": "10.0.0.1",
    "user before the host": "good.example@127.0.0.1",
}
"""Hosts that a task with the mode `public` must not reach."""


@dataclass(frozen=True, slots=True)
class Smuggled:
    """A request whose target is allowed, with something else in it: {good} is the target. No word
    `evil` may reach the server."""

    request: str
    is_answered: bool = True
    """False if the proxy refuses it, with 400."""


_SECOND = "GET http://evil.example/evil HTTP/1.1\r\nHost: evil.example\r\n\r\n"
_FIRST = "GET http://{good}/ HTTP/1.1\r\n"
_POST = "POST http://{good}/ HTTP/1.1\r\nHost: {good}\r\n"

SMUGGLED = {
    "another Host": Smuggled(f"{_FIRST}Host: evil.example\r\n\r\n"),
    "no Host": Smuggled(f"{_FIRST}X: a\r\n\r\n"),
    "two Hosts": Smuggled(f"{_FIRST}Host: {{good}}\r\nHost: evil.example\r\n\r\n"),
    "Host in capitals": Smuggled(f"{_FIRST}HOST: evil.example\r\n\r\n"),
    "space before the colon": Smuggled(f"{_FIRST}Host : evil.example\r\n\r\n", False),
    "folded header": Smuggled(f"{_FIRST}X: a\r\n Host: evil.example\r\n\r\n", False),
    "bare line feed": Smuggled(f"{_FIRST}X: a\nHost: evil.example\r\n\r\n", False),
    "bare carriage return": Smuggled(f"{_FIRST}X: a\rHost: evil.example\r\n\r\n", False),
    "line feed in the target": Smuggled(
        "GET http://{good}/\nHost:evil.example HTTP/1.1\r\n\r\n", False
    ),
    "null": Smuggled(f"{_FIRST}X: evil\0\r\n\r\n", False),
    "second request": Smuggled(f"{_FIRST}Host: {{good}}\r\n\r\n{_SECOND}"),
    "second request, kept alive": Smuggled(
        f"{_FIRST}Host: {{good}}\r\nConnection: keep-alive\r\n\r\n{_SECOND}"
    ),
    "second request behind a body": Smuggled(f"{_POST}Content-Length: 4\r\n\r\nbody{_SECOND}"),
    "second request behind chunks": Smuggled(
        f"{_POST}Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n{_SECOND}"
    ),
    "in a trailer": Smuggled(
        f"{_POST}Transfer-Encoding: chunked\r\n\r\n0\r\nX: a\n\nGET /evil HTTP/1.1\n\n\r\n\r\n"
    ),
    "in the extension of a chunk": Smuggled(
        f"{_POST}Transfer-Encoding: chunked\r\n\r\n4;evil=1\r\nbody\r\n0\r\n\r\n"
    ),
    "length and chunks": Smuggled(
        f"{_POST}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{_SECOND}", False
    ),
    "two lengths": Smuggled(
        f"{_POST}Content-Length: 0\r\nContent-Length: 70\r\n\r\n{_SECOND}", False
    ),
    "signed length": Smuggled(f"{_POST}Content-Length: +70\r\n\r\n{_SECOND}", False),
    "coding other than chunks": Smuggled(
        f"{_POST}Transfer-Encoding: xchunked\r\n\r\n{_SECOND}", False
    ),
    "chunks in HTTP/1.0": Smuggled(
        f"POST http://{{good}}/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{_SECOND}",
        False,
    ),
    "length removed by Connection": Smuggled(
        f"{_POST}Connection: content-length\r\nContent-Length: 4\r\n\r\nbody{_SECOND}"
    ),
    "header removed by Connection": Smuggled(f"{_FIRST}Connection: X-A\r\nX-A: evil\r\n\r\n"),
    "header for the proxy": Smuggled(f"{_FIRST}Proxy-Authorization: evil\r\n\r\n"),
    "upgrade": Smuggled(f"{_FIRST}Connection: upgrade\r\nUpgrade: evil\r\n\r\n"),
}

BAD_HEADS = {
    "nonsense": b"nonsense\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "other scheme": b"GET ftp://a/ HTTP/1.1\r\n\r\n",
    "https without a tunnel": b"GET https://good.example/ HTTP/1.1\r\n\r\n",
    "other version": b"GET http://good.example/ HTTP/2.0\r\n\r\n",
    "empty label": b"CONNECT a..com:443 HTTP/1.1\r\n\r\n",
    "empty label, plain": b"GET http://a..com/ HTTP/1.1\r\n\r\n",
    "long label": b"CONNECT " + b"a" * 70 + b".example:443 HTTP/1.1\r\n\r\n",
    "long name": b"CONNECT " + b"a." * 200 + b"example:443 HTTP/1.1\r\n\r\n",
    "name outside ASCII": b"CONNECT b\xfccher.example:443 HTTP/1.1\r\n\r\n",
    "percent": b"CONNECT 127.0.0.1%00.good.example:443 HTTP/1.1\r\n\r\n",
    "scope": b"CONNECT [fe80::1%25eth0]:443 HTTP/1.1\r\n\r\n",
    "no port": b"CONNECT good.example HTTP/1.1\r\n\r\n",
    "large port": b"CONNECT good.example:70000 HTTP/1.1\r\n\r\n",
    "path in a tunnel": b"CONNECT good.example:443/x HTTP/1.1\r\n\r\n",
    "bad IPv6": b"CONNECT [::1:443 HTTP/1.1\r\n\r\n",
    "half a head": b"CONNECT good.ex",
}
