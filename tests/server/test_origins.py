"""Requests, as raw bytes, that pages in a browser on the same machine can send: all refused."""

import asyncio
import json
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest

from prorl_service.client import AsyncRolloutClient
from prorl_service.schemas import BackendSpec
from prorl_service.testing import StubEngine
from tests.server.application import Settings, serving

pytestmark = pytest.mark.processes

TOKEN = "a-token-of-some-length"
WITHOUT_BODY = ("/start", "/stop", "/clear_llm_server")
"""Routes of ProRL Agent that a form can post to."""
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
}


async def answer(
    url: str, request: str, host: str | None = None, **headers: str
) -> tuple[int, str]:
    """Returns status and body. `request`: method and path; PORT in `host`: the service's port."""
    address = urlsplit(url)
    lines = [f"{request} HTTP/1.1", "Connection: close", "Content-Length: 0"]
    if host is not None:
        lines.append(f"Host: {host.replace('PORT', str(address.port))}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        writer.write("\r\n".join([*lines, "", ""]).encode())
        head, _, content = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    return int(head.split()[1]), content.decode(errors="replace")


@pytest.fixture
async def guarded_url(engine: StubEngine) -> AsyncIterator[str]:
    settings = Settings(backends=(BackendSpec(url=engine.url),), sandbox="process", token=TOKEN)
    async with serving(settings) as address:
        yield address


@pytest.mark.parametrize("path", WITHOUT_BODY)
@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:1", "x"])
async def test_a_page_of_another_site_reaches_no_route(
    url: str, client: AsyncRolloutClient, path: str, origin: str
) -> None:
    status, content = await answer(url, f"POST {path}", "127.0.0.1:PORT", Origin=origin)
    assert (status, json.loads(content)["error"]["kind"]) == (403, "Forbidden")
    assert len(await client.backends()) == 1


@pytest.mark.parametrize(
    ("request_line", "headers"),
    [
        ("POST /clear_llm_server", {}),
        ("GET /v1/status", {}),
        ("GET /docs", {}),
        ("POST /v1/backends", {"Content_Type": "application/json"}),
        ("GET /v1/status", UPGRADE),
    ],
)
async def test_a_foreign_name_that_resolves_to_this_machine_reaches_nothing(
    url: str, request_line: str, headers: dict[str, str]
) -> None:
    own = {"Origin": "http://evil.example:PORT", **headers}
    assert (await answer(url, request_line, "evil.example:PORT", **headers))[0] == 403
    port = str(urlsplit(url).port)
    own["Origin"] = own["Origin"].replace("PORT", port)
    assert (await answer(url, request_line, "evil.example:PORT", **own))[0] == 403


@pytest.mark.parametrize(
    "host",
    [None, "", "localhost.evil.example", "localhost@evil.example", "127.0.0.1.nip.io", "[::1"],
)
async def test_a_host_that_only_looks_like_loopback_is_refused(url: str, host: str | None) -> None:
    assert (await answer(url, "GET /v1/status", host))[0] in (400, 403)


@pytest.mark.parametrize("host", ["127.0.0.1:PORT", "localhost:PORT", "LOCALHOST", "[::1]:PORT"])
async def test_loopback_names_and_their_own_pages_are_served(url: str, host: str) -> None:
    assert (await answer(url, "GET /v1/status", host))[0] == 200
    port = str(urlsplit(url).port)
    origin = f"http://{host.replace('PORT', port)}"
    assert (await answer(url, "GET /v1/status", host, Origin=origin))[0] == 200


async def test_a_websocket_of_another_site_is_refused(url: str) -> None:
    refused = await answer(
        url, "GET /v1/status", "127.0.0.1:PORT", Origin="http://evil.example", **UPGRADE
    )
    assert refused[0] == 403


async def test_a_request_with_two_host_headers_is_refused(url: str) -> None:
    status, _ = await answer(url, "GET /v1/status", "localhost", Host="localhost")
    assert status in (400, 403)


async def test_a_service_with_a_token_allows_any_name_but_no_foreign_pages(
    guarded_url: str,
) -> None:
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    assert (await answer(guarded_url, "GET /v1/status", "node17:PORT", **bearer))[0] == 200
    assert (await answer(guarded_url, "GET /health", "node17:PORT"))[0] == 200
    assert (await answer(guarded_url, "GET /v1/status", "node17:PORT"))[0] == 401
    port = str(urlsplit(guarded_url).port)
    for origin, expected in (("http://evil.example", 403), (f"http://node17:{port}", 200)):
        got = await answer(guarded_url, "GET /v1/status", "node17:PORT", Origin=origin, **bearer)
        assert got[0] == expected


async def test_the_operator_can_allow_other_names(engine: StubEngine) -> None:
    settings = Settings(sandbox="process", allowed_hosts=("Rollouts.example",))
    async with serving(settings) as url:
        assert (await answer(url, "GET /v1/status", "rollouts.example"))[0] == 200
        page = {"Origin": "https://rollouts.example"}
        assert (await answer(url, "GET /v1/status", "127.0.0.1:PORT", **page))[0] == 200
        assert (await answer(url, "GET /v1/status", "evil.example"))[0] == 403
