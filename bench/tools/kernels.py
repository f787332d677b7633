"""Other ways to an IPython kernel: Jupyter's gateway, and Jupyter's client in this process.

The gateway is what OpenHands puts between its agent and the kernel: HTTP to start one, a websocket
for each message. It writes the messages of an answer one by one with Nagle's algorithm on, so an
ordinary client, whose kernel delays acknowledgements, waits 40 ms; a client that acknowledges
immediately shows what the gateway itself takes. The gateway has an environment of its own,
.venv-gateway, made at first use.
"""

import asyncio
import os
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from typing import Any
from uuid import uuid4

import aiohttp
from jupyter_client.manager import start_new_async_kernel

from bench.frame import own_programs
from prorl_service.local import free_port

RunCode = Callable[[str], Awaitable[str]]

PACKAGES = ["jupyter_kernel_gateway==3.0.1", "ipykernel"]
START_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 30.0

# The gateway would drop output beyond 1 MB/s.
_GATEWAY_OPTIONS = ["--ZMQChannelsWebsocketConnection.limit_rate=False"]


class _Collected:
    """Text of one request's messages, until both its reply and the kernel's idle status arrived."""

    def __init__(self, request: str) -> None:
        self._request = request
        self._missing = {"execute_reply", "idle"}
        self._text: list[str] = []

    def add(self, message: dict[str, Any]) -> bool:
        """Adds a message; returns whether it was the last."""
        if message["parent_header"].get("msg_id") != self._request:
            return False
        content = message["content"]
        match message["header"]["msg_type"]:
            case "stream":
                self._text.append(content["text"])
            case "execute_result":
                self._text.append(content["data"]["text/plain"])
            case "error":
                raise RuntimeError("\n".join(content["traceback"]))
            case "execute_reply":
                self._missing.discard("execute_reply")
            case "status" if content["execution_state"] == "idle":
                self._missing.discard("idle")
        return not self._missing

    @property
    def replied(self) -> bool:
        return "execute_reply" not in self._missing

    @property
    def text(self) -> str:
        return "".join(self._text)


@asynccontextmanager
async def direct() -> AsyncIterator[RunCode]:
    """Jupyter's own client over ZeroMQ, without any server or sandbox."""
    manager, client = await start_new_async_kernel(kernel_name="python3")

    async def run(code: str) -> str:
        collected = _Collected(client.execute(code, store_history=False, allow_stdin=False))
        # A kernel that started slowly has answered several requests for its information.
        while not collected.replied:
            collected.add(await client.get_shell_msg())
        while not collected.add(await client.get_iopub_msg()):
            pass
        return collected.text

    try:
        yield run
    finally:
        client.stop_channels()
        await manager.shutdown_kernel(now=True)


@asynccontextmanager
async def gateway(*, acknowledge_at_once: bool) -> AsyncIterator[RunCode]:
    programs = own_programs("gateway", PACKAGES)
    port = free_port()
    server = await asyncio.create_subprocess_exec(
        programs / "jupyter-kernelgateway",
        *("--ip=127.0.0.1", f"--port={port}", *_GATEWAY_OPTIONS),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        async with aiohttp.ClientSession(url) as http:
            await _until_answered(http)
            async with http.post("/api/kernels", json={"name": "python3"}) as answer:
                answer.raise_for_status()
                kernel = (await answer.json())["id"]
            async with http.ws_connect(f"/api/kernels/{kernel}/channels", max_msg_size=0) as ws:
                with closing(_same_socket(ws)) as connection:
                    quick = connection if acknowledge_at_once else None
                    yield lambda code: _over_websocket(ws, code, quick)
            await http.delete(f"/api/kernels/{kernel}")
    finally:
        server.terminate()
        await server.wait()


def _same_socket(ws: aiohttp.ClientWebSocketResponse) -> socket.socket:
    """Duplicates the connection's socket: the event loop's own object has no options."""
    return socket.socket(fileno=os.dup(ws.get_extra_info("socket").fileno()))


async def _over_websocket(
    ws: aiohttp.ClientWebSocketResponse, code: str, quick: socket.socket | None
) -> str:
    request = uuid4().hex
    header = {"msg_id": request, "msg_type": "execute_request", "version": "5.0"}
    content = {
        "code": code,
        "silent": False,
        "store_history": False,
        "user_expressions": {},
        "allow_stdin": False,
    }
    await ws.send_json(
        {
            "header": {**header, "username": "", "session": ""},
            "parent_header": {},
            "channel": "shell",
            "content": content,
            "metadata": {},
            "buffers": {},
        }
    )
    collected = _Collected(request)
    while True:
        if quick is not None:  # holds for a few segments only
            quick.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        if collected.add(await ws.receive_json()):
            return collected.text


async def _until_answered(http: aiohttp.ClientSession) -> None:
    async with asyncio.timeout(START_TIMEOUT_S):
        while True:
            try:
                async with http.get("/api") as answer:
                    answer.raise_for_status()
                    return
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.05)
