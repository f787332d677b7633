"""The proxy of sandboxes: what passes, what does not, and what is counted."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address

import httpx
import pytest
from aiohttp import web

from prorl_service.sandbox.base import SandboxProvider
from prorl_service.sandbox.egress import Egress, Policy, variables
from tests.sandbox.sandboxes import output, started

pytestmark = pytest.mark.processes


@asynccontextmanager
async def server() -> AsyncIterator[str]:
    """Runs a server on the loopback that says what it was asked."""

    async def answer(request: web.Request) -> web.Response:
        body = await request.text()
        return web.Response(text=f"{request.method} {request.path_qs} {body}")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def listening() -> socket.socket:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    return listener


@pytest.mark.parametrize(
    ("hosts", "host", "is_allowed"),
    [
        (["example.com"], "example.com", True),
        (["example.com"], "www.example.com", False),
        (["*.example.com"], "www.example.com", True),
        (["*.example.com"], "example.com", False),
        (["192.0.2.0/24"], "192.0.2.7", True),
        (["192.0.2.0/24"], "192.0.3.7", False),
        (["2001:db8::1"], "2001:db8::1", True),
        ([], "example.com", False),
    ],
)
def test_hosts_of_an_allowlist(hosts: list[str], host: str, is_allowed: bool) -> None:
    assert Policy("allowlist", hosts).allows_name(host) is is_allowed


@pytest.mark.parametrize("address", ["10.0.0.1", "127.0.0.1", "169.254.169.254", "fd00::1", "::1"])
def test_addresses_that_are_not_public_must_be_named(address: str) -> None:
    found = ip_address(address)
    assert not Policy("public").allows_address(found)
    assert not Policy("allowlist", ["example.com"]).allows_address(found)
    assert Policy("allowlist", [address]).allows_address(found)


async def test_plain_http_passes_and_is_counted() -> None:
    egress = Egress(Policy("allowlist", ["127.0.0.1"]))
    async with (
        server() as host,
        egress.served(listening()) as found,
        httpx.AsyncClient(proxy=found["http_proxy"], trust_env=False) as client,
    ):
        answer = await client.post(f"http://{host}/a/b?c=d", content="body")
        assert answer.text == "POST /a/b?c=d body"
        refused = await client.get("http://localhost:1/")
    assert refused.status_code == 403
    assert "localhost: the task may not reach it" in refused.text
    assert egress.allowed == {"127.0.0.1": 1}
    assert egress.refused == {"localhost": 1}


async def test_a_tunnel_carries_bytes_both_ways() -> None:
    egress = Egress(Policy("allowlist", ["127.0.0.1"]))
    listener = listening()
    port = listener.getsockname()[1]
    async with server() as host, egress.served(listener):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        assert b"200" in await reader.readuntil(b"\r\n\r\n")
        writer.write(f"GET /x HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        assert (await reader.read()).endswith(b"GET /x ")
        writer.close()


async def test_a_name_of_a_private_address_is_refused() -> None:
    egress = Egress(Policy("public"))
    async with (
        egress.served(listening()) as found,
        httpx.AsyncClient(proxy=found["http_proxy"], trust_env=False) as client,
    ):
        answer = await client.get("http://localhost:9/")
    assert answer.status_code == 403
    assert "not public" in answer.text


@pytest.mark.parametrize(
    "text", [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"GET ftp://a/ HTTP/1.1\r\n\r\n"]
)
async def test_what_is_no_proxy_request_is_refused(text: bytes) -> None:
    listener = listening()
    port = listener.getsockname()[1]
    async with Egress(Policy("public")).served(listener):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(text)
        assert (await reader.read()).startswith(b"HTTP/1.1 400")
        writer.close()


async def test_programs_in_a_sandbox_use_it(isolating: SandboxProvider) -> None:
    egress = Egress(Policy("allowlist", ["127.0.0.1"]))
    async with (
        server() as host,
        started(isolating) as sandbox,
        egress.served(await sandbox.listen(0)) as found,
    ):
        proxy = found["http_proxy"]
        program = (
            "import urllib.request as r;"
            f" h = r.ProxyHandler({{'http': '{proxy}'}});"
            f" q = r.Request('http://{host}/in');"
            f" q.set_proxy('{proxy.removeprefix('http://')}', 'http');"
            " print(r.build_opener(h).open(q).read().decode())"
        )
        assert await output(sandbox, f'python3 -c "{program}"') == "GET /in "
    assert egress.allowed == {"127.0.0.1": 1}


def test_variables_name_the_proxy_in_both_cases() -> None:
    found = variables("http://127.0.0.1:1")
    assert found["https_proxy"] == found["HTTPS_PROXY"] == "http://127.0.0.1:1"
