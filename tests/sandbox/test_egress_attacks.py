"""The proxy of sandboxes against a hostile sandbox."""

import asyncio
import ipaddress
import logging
import socket
from contextlib import suppress

import psutil
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from prorl_service.sandbox.egress import addresses, connecting
from prorl_service.sandbox.egress.addresses import Address, is_own, is_public, read_range
from prorl_service.sandbox.egress.policy import EgressPolicy, Rules
from prorl_service.sandbox.egress.proxy import MAX_HEAD_BYTES, Egress, ProxyLimits
from prorl_service.sandbox.egress.requests import ProxyRequest, RefusedHead
from tests.sandbox.egress_attacks import BAD_HEADS, PRIVATE_HOSTS, SMUGGLED, Smuggled
from tests.sandbox.egress_servers import (
    GUARD_S,
    Behaviour,
    answering,
    asked,
    echoing,
    egress_to,
    flooding,
    proxy,
    serving,
    silent,
    tunnel,
)

PUBLIC = EgressPolicy("public")
EVERYTHING = EgressPolicy("allowlist", ["::/0"])
IPV4 = st.ip_addresses(v=4) | st.sampled_from(
    [ipaddress.IPv4Address(text) for text in ("10.0.0.1", "127.0.0.1", "169.254.169.254")]
)


@pytest.mark.parametrize("host", PRIVATE_HOSTS.values(), ids=PRIVATE_HOSTS)
@pytest.mark.parametrize("request_line", ["CONNECT {}", "GET http://{}/"])
async def test_no_private_address_is_reached(host: str, request_line: str) -> None:
    async with serving(answering, "0.0.0.0") as server:
        egress = egress_to(server.port, mode="public", hosts=[])
        async with proxy(egress) as port:
            asks = request_line.format(f"{host}:{server.port}")
            answer = await asked(port, f"{asks} HTTP/1.1\r\n\r\n".encode())
    assert answer.startswith((b"HTTP/1.1 403", b"HTTP/1.1 400"))
    assert server.received == []
    assert not egress.allowed


@pytest.mark.parametrize("attack", SMUGGLED.values(), ids=SMUGGLED)
async def test_one_request_reaches_the_host_that_was_allowed(attack: Smuggled) -> None:
    async with serving(answering) as server, proxy(egress_to(server.port)) as port:
        good = f"127.0.0.1:{server.port}"
        answer = await asked(port, attack.request.replace("{good}", good).encode())
        await server.all_ended(int(attack.is_answered))
    if attack.is_answered:
        assert answer.endswith(b"reached")
        [received] = server.received
        assert received.count(f"Host: {good}\r\n".encode()) == 1
        assert received.lower().count(b"host:") == received.count(b" HTTP/1.1\r\n") == 1
        assert b"\r\nConnection: close\r\n" in received
        assert b"evil" not in received
    else:
        assert answer.startswith(b"HTTP/1.1 400")
        assert server.received == []


@pytest.mark.parametrize("head", BAD_HEADS.values(), ids=BAD_HEADS)
async def test_bad_heads_are_answered_and_not_logged(
    head: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with proxy(Egress(PUBLIC)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head)
        writer.write_eof()
        async with asyncio.timeout(GUARD_S):
            assert (await reader.read()).startswith(b"HTTP/1.1 400")
        writer.close()
    assert not [one for one in caplog.records if one.levelno > logging.DEBUG]


async def test_a_long_head_is_answered() -> None:
    async with proxy(Egress(PUBLIC)) as port:
        head = b"GET http://good.example/ HTTP/1.1\r\nX: " + b"a" * 4 * MAX_HEAD_BYTES
        assert (await asked(port, head)).startswith(b"HTTP/1.1 431")


async def test_a_head_that_never_ends_is_answered() -> None:
    async with proxy(Egress(PUBLIC, ProxyLimits(head_s=0.05))) as port:
        assert (await asked(port, b"GET http://good.example/")).startswith(b"HTTP/1.1 408")


async def test_a_bug_is_one_line_for_debugging(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(host: str) -> list[Address]:
        raise RuntimeError(host)

    monkeypatch.setattr(connecting, "addresses_of", broken)
    with caplog.at_level(logging.DEBUG, logger="prorl_service"):
        async with proxy(Egress(PUBLIC)) as port:
            assert await asked(port, b"CONNECT good.example:443 HTTP/1.1\r\n\r\n") == b""
    [line] = [one for one in caplog.records if one.name.startswith("prorl_service")]
    assert (line.levelno, line.exc_info) == (logging.DEBUG, None)


async def test_no_tunnel_outlives_the_proxy() -> None:
    async with serving(silent) as server:
        async with proxy(egress_to(server.port)) as port:
            tunnels = [await tunnel(port, f"127.0.0.1:{server.port}") for _ in range(20)]
        await server.all_ended(20)
        for reader, writer in tunnels:
            assert await _rest(reader) == b""
            writer.close()
        assert not [one for one in asyncio.all_tasks() if one.get_name().startswith("egress")]


async def test_no_tunnel_that_nobody_reads_outlives_the_proxy() -> None:
    async with serving(flooding) as server:
        async with proxy(egress_to(server.port)) as port:
            _, writer = await tunnel(port, f"127.0.0.1:{server.port}")
        await server.all_ended(1)
        writer.close()


async def test_connections_of_a_sandbox_are_bounded_and_further_ones_wait() -> None:
    async def used(port: int, target: str) -> None:
        reader, writer = await tunnel(port, target)
        writer.write(b"ping")
        assert await reader.readexactly(4) == b"ping"
        writer.close()

    async with serving(echoing) as server:
        async with proxy(egress_to(server.port, limits=ProxyLimits(connections=3))) as port:
            await asyncio.gather(*(used(port, f"127.0.0.1:{server.port}") for _ in range(30)))
        await server.all_ended(30)
    assert server.most <= 6  # each that was replaced may not yet have ended there


@pytest.mark.parametrize("behaviour", [silent, flooding], ids=["silent", "nobody reads"])
async def test_idle_tunnels_end(behaviour: Behaviour) -> None:
    async with serving(behaviour) as server:
        limits = ProxyLimits(idle_s=0.1)
        async with proxy(egress_to(server.port, limits=limits)) as port:
            _, writer = await tunnel(port, f"127.0.0.1:{server.port}")
            await server.all_ended(1)
            writer.close()


async def test_a_server_that_never_answers_ends_a_request() -> None:
    async with serving(silent) as server:
        limits = ProxyLimits(idle_s=0.1)
        async with proxy(egress_to(server.port, limits=limits)) as port:
            request = f"GET http://127.0.0.1:{server.port}/ HTTP/1.1\r\n\r\n"
            assert await asked(port, request.encode()) == b""
            await server.all_ended(1)


@pytest.mark.parametrize("first", ["dead", "black hole", "forbidden"])
async def test_all_addresses_of_a_name_are_tried(
    first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(echoing) as server:
        before = "10.1.2.3" if first == "forbidden" else "127.0.0.9"

        async def two(host: str) -> list[Address]:
            return [ipaddress.ip_address(before), ipaddress.ip_address("127.0.0.1")]

        monkeypatch.setattr(connecting, "addresses_of", two)
        hosts = ["good.example", "127.0.0.0/8"]
        with socket.socket() as hole, socket.socket() as filling:
            if first == "black hole":
                hole.bind((before, server.port))
                hole.listen(0)
                filling.connect((before, server.port))  # the queue is full: others get no answer
            async with proxy(egress_to(server.port, hosts=hosts)) as port:
                reader, writer = await tunnel(port, f"good.example:{server.port}")
                writer.write(b"ping")
                assert await reader.readexactly(4) == b"ping"
                writer.close()


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "[::ffff:127.0.0.1]", "localhost", "0.0.0.0", "[::]", "127.1"]
)
async def test_what_the_operator_denies_is_not_reached_by_name(host: str) -> None:
    hosts = ["localhost", "127.1", "0.0.0.0/0", "::/0"]
    async with serving(answering) as server:
        rules = Rules([read_range("127.0.0.0/8"), read_range("::1")], frozenset({server.port}))
        async with proxy(Egress(EgressPolicy("allowlist", hosts, rules))) as port:
            request = f"CONNECT {host}:{server.port} HTTP/1.1\r\n\r\n"
            assert (await asked(port, request.encode())).startswith(b"HTTP/1.1 403")


@pytest.mark.parametrize("port_of_host", [22, 25, 0, 8080])
async def test_other_ports_than_the_webs_are_refused(port_of_host: int) -> None:
    async with proxy(Egress(EgressPolicy("allowlist", ["127.0.0.1"]))) as port:
        request = f"CONNECT 127.0.0.1:{port_of_host} HTTP/1.1\r\n\r\n"
        answer = await asked(port, request.encode())
    assert answer.startswith(b"HTTP/1.1 403")
    assert f"port {port_of_host}".encode() in answer


def test_addresses_of_the_host_are_its_own() -> None:
    found = [one.address for many in psutil.net_if_addrs().values() for one in many]
    own = [one for one in map(addresses.read_address, found) if one is not None]
    assert own
    for address in own:
        assert is_own(address)
        assert not PUBLIC.allows_address(address)
    assert not is_own(ipaddress.ip_address("192.0.2.1"))
    assert not is_own(ipaddress.ip_address("2001:db8::1"))


def test_a_public_address_of_the_host_must_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    address = ipaddress.ip_address("8.8.8.8")
    assert PUBLIC.allows_address(address)
    monkeypatch.setattr(addresses, "is_own", lambda one: one == address)
    assert not PUBLIC.allows_address(address)
    assert EgressPolicy("allowlist", ["8.8.8.8"]).allows_address(address)


@given(IPV4)
def test_an_address_of_ipv4_in_one_of_ipv6_is_checked_again(inner: ipaddress.IPv4Address) -> None:
    for outer in _embedding(inner):
        is_mapped = outer.ipv4_mapped is not None
        may = PUBLIC.allows_address(inner)
        assert PUBLIC.allows_address(outer) <= (is_mapped and may)
        assert EVERYTHING.allows_address(outer) <= may


@given(st.ip_addresses())
def test_what_is_public_here_is_public_for_python(address: Address) -> None:
    assert is_public(address) <= (address.is_global and not address.is_multicast)


@given(IPV4)
def test_what_is_denied_stays_so_in_ipv6(inner: ipaddress.IPv4Address) -> None:
    denying = EgressPolicy("allowlist", ["::/0", "0.0.0.0/0"], Rules([read_range(f"{inner}")]))
    assert not denying.allows_address(inner)
    assert not any(map(denying.allows_address, _embedding(inner)))


@example("@0")
@given(st.text() | st.text("abAB01.-_:[]@%/\\*?#\0 \n", max_size=300))
def test_a_name_is_looked_up_as_it_was_allowed(name: str) -> None:
    head = f"CONNECT {name}:443 HTTP/1.1\r\n\r\n".encode()
    host = host_in(head)
    written = (name.lower().rstrip("."), str(addresses.read_address(name.strip("[]"))))
    assert host is None or (host.encode("idna") and host in written)
    policy = EgressPolicy("allowlist", ["ab.a", "*.b.a"])
    is_named = host == "ab.a" or (host and host.endswith(".b.a") and host.count(".") > 1)
    assert host is None or policy.allows_name(host) == is_named


def host_in(head: bytes) -> str | None:
    """Returns the host in an accepted head."""
    with suppress(RefusedHead):
        return ProxyRequest.read(head).host
    return None


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_a_head_has_one_host_or_is_refused(target: bytes, header: bytes) -> None:
    head = b"GET http://good.example/" + target + b" HTTP/1.1\r\n" + header + b"\r\n\r\n"
    assert host_in(head) in (None, "good.example")
    if host_in(head) is None:
        return
    lines = ProxyRequest.read(head).head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    assert [one for one in lines if one.lower().startswith(b"host:")] == [b"Host: good.example"]
    assert not any(byte in one for one in lines for byte in (b"\r", b"\n", b"\0"))


def _embedding(inner: ipaddress.IPv4Address) -> list[ipaddress.IPv6Address]:
    prefixes = ("::", "::ffff:0:0", "::ffff:0:0:0", "64:ff9b::", "64:ff9b:1::")
    last = [int(ipaddress.IPv6Address(one)) | int(inner) for one in prefixes]
    sixtofour = (0x2002 << 112) | (int(inner) << 80) | 1
    teredo = 0x2001_0000 << 96
    client = teredo | (0x0808_0808 << 64) | (int(inner) ^ 0xFFFF_FFFF)
    server = teredo | (int(inner) << 64)
    found = [ipaddress.IPv6Address(one) for one in (*last, sixtofour, server, client)]
    return [one for one in found if int(one) > 1]  # those are the loopback of IPv6


async def _rest(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""
