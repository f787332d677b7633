"""Tools of real MCP servers in separate processes, over stdio and over HTTP."""

import asyncio
import os
import sys
from pathlib import Path

import mcp_types
import pytest
from aiohttp import web

from prorl_service.errors import ProRLError, ToolServerError
from prorl_service.tools.base import Tool, function_schema
from prorl_service.tools.mcp import servers, stdio
from prorl_service.tools.mcp.servers import McpServers
from prorl_service.tools.mcp.tool import tool_of
from prorl_service.tools.remote import MAX_OUTPUT_BYTES
from prorl_service.tools.spec import McpSpec
from tests.tools.mcp_processes import COMMAND, Transport, misbehaving

pytestmark = pytest.mark.processes

BOTH: list[Transport] = ["stdio", "http"]


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    log = tmp_path / "log"
    log.touch()
    monkeypatch.setenv("MCP_TEST_LOG", str(log))
    return log


@pytest.mark.parametrize("transport", BOTH)
async def test_tools_are_offered_as_the_server_describes_them(
    transport: Transport, log: Path
) -> None:
    async with misbehaving(transport, log, ("repeat", "sleep")) as server:
        assert list(server.tools) == ["repeat", "sleep"]
        assert all(isinstance(tool, Tool) for tool in server.tools.values())
        function = function_schema(server.tools["repeat"])["function"]
    assert function["description"] == "Say it again and again."
    parameters = function["parameters"]
    assert parameters["properties"]["text"] == {"type": "string"}
    assert parameters["properties"]["times"] == {"type": "integer", "default": 1}
    assert parameters["required"] == ["text"]


def test_a_schema_may_allow_anything() -> None:
    schema = {"type": "object", "properties": {"anything": True, "text": {"title": "Text"}}}
    server = servers.McpServer(McpSpec("mis", "true"))
    tool = tool_of(server, mcp_types.Tool(name="any", input_schema=schema))
    parameters = function_schema(tool)["function"]["parameters"]
    assert parameters["properties"] == {"anything": True, "text": {}}


@pytest.mark.parametrize("transport", BOTH)
async def test_failures_of_a_tool_are_answers_and_megabytes_are_cut(
    transport: Transport, log: Path
) -> None:
    async with misbehaving(transport, log) as server:
        said = await server.call("repeat", text="hi", times=2)
        assert (said.output, said.is_error) == ("hihi", False)
        wrong = await server.call("repeat", text=3)
        assert wrong.is_error
        assert "text" in wrong.output
        refused = await server.call("refuse")
        assert refused.is_error
        assert "it is refused" in refused.output
        shown = await server.call("picture")
        assert shown.output == "Look:\n[image, which cannot be shown]"
        flood = await server.call("repeat", text="0123456789abcdef", times=2**17)
        omitted = 2**21 - MAX_OUTPUT_BYTES
        assert f"def\n[... {omitted} bytes omitted ...]\n012" in flood.output
        assert len(flood.output) < MAX_OUTPUT_BYTES + 100


@pytest.mark.parametrize("transport", BOTH)
async def test_an_answer_that_is_too_large_costs_only_its_call(
    transport: Transport, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "MAX_ANSWER_BYTES", 2**20)
    async with misbehaving(transport, log) as server:
        flood = await server.call("repeat", text="x", times=2**21)
        assert flood.is_error
        assert (await server.call("repeat", text="back")).output == "back"


@pytest.mark.parametrize("transport", BOTH)
async def test_a_call_that_hangs_times_out_and_holds_up_no_other(
    transport: Transport, log: Path
) -> None:
    async with misbehaving(transport, log) as server:
        hanging = asyncio.create_task(server.call("sleep", seconds=3600, timeout_s=1))
        await server.until_saw("sleeping")
        assert (await server.call("repeat", text="hi")).output == "hi"
        hung = await hanging
        assert (hung.output, hung.is_error) == ("[timed out after 1 s]", True)
        await server.until_saw("cancelled")
        assert (await server.call("repeat", text="hi")).output == "hi"
        assert len(server.started()) == 1


async def test_a_read_only_call_is_retried(log: Path) -> None:
    async with misbehaving("stdio", log) as server:
        assert (await server.call("die_once")).output == "alive"
        assert len(server.started()) == 2


async def test_a_server_that_comes_back_is_used_again(log: Path) -> None:
    async with misbehaving("http", log) as server:
        assert server.http is not None
        server.http.stop()
        assert (await server.call("repeat", text="lost")).is_error
        with pytest.raises(ToolServerError, match="'mis' was not there within") as caught:
            await server.call("repeat", text="still", timeout_s=0.5)
        assert caught.value.retryable
        await server.http.start()
        assert (await server.call("repeat", text="back")).output == "back"


async def test_a_command_that_freezes_is_killed_and_restarted(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "CHECK_TIMEOUT_S", 0.5)
    async with misbehaving("stdio", log) as server:
        frozen = await server.call("freeze", seconds=3600, timeout_s=1)
        assert frozen.output == "[timed out after 1 s]"
        await server.until_saw("frozen")
        while len(server.started()) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert (await server.call("repeat", text="back")).output == "back"
        assert server.running() == server.started()[1:]
    assert server.running() == []


async def test_a_command_gets_the_environment(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THE_OPERATOR", "set")
    async with misbehaving("stdio", log) as server:
        assert (await server.call("environment", variable="OF_THE_OPERATOR")).output == "set"


async def test_a_missing_tool_is_reported_at_the_start(log: Path) -> None:
    servers = McpServers([McpSpec("mis", COMMAND, ("repeat", "fly"))])
    with pytest.raises(ProRLError, match="no tool 'fly'; its tools: repeat, sleep"):
        await servers.__aenter__()


@pytest.mark.parametrize("command", ["true", "cat", "echo no message"])
async def test_a_command_that_is_no_server_is_reported_at_the_start(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "CONNECT_TIMEOUT_S", 2)
    with pytest.raises(ProRLError, match="'mis' cannot be used"):
        await McpServers([McpSpec("mis", command)]).__aenter__()


async def test_output_that_outlives_a_command_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stdio, "GRACE_S", 0.2)
    held = ["sh", "-c", "setsid sleep 5 & cat"]
    for _ in range(2):  # the first start opens what the loop needs
        before = os.listdir("/proc/self/fd")
        transport = stdio.stdio_transport(held, max_answer_bytes=10, on_end=lambda: None)
        async with transport as (received, sent), received, sent:
            pass
        await asyncio.sleep(0.1)
    assert os.listdir("/proc/self/fd") == before


async def test_the_error_without_the_extra_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(ProRLError, match="'mis' cannot be used") as caught:
        await McpServers([McpSpec("mis", "true")]).__aenter__()
    assert caught.value.hint == "pip install 'prorl-service[mcp]'"


async def test_a_server_gets_its_key_as_a_bearer_token() -> None:
    seen = []

    async def refuse(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.Response(status=401)

    app = web.Application()
    app.router.add_post("/mcp", refuse)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/mcp?also=secret"
    with pytest.raises(ProRLError, match="cannot be used") as caught:
        await McpServers([McpSpec("mis", url, key="the-key")]).__aenter__()
    await runner.cleanup()
    assert set(seen) == {"Bearer the-key"}
    assert "secret" not in f"{caught.value.info()}"
    assert "the-key" not in f"{caught.value.info()} {McpSpec('mis', url, key='the-key')!r}"
