"""Output of a tool that is still running."""

import asyncio

import pytest

from prorl_service.sandbox.guest.execd.request import INTERVAL_S, PIECE_BYTES
from prorl_service.sandbox.host.sandbox import RemoteSandbox
from tests.sandbox.sandboxes import bash

pytestmark = [pytest.mark.processes, pytest.mark.unprivileged]


class Viewer:
    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self._came = asyncio.Event()

    def __call__(self, piece: bytes) -> None:
        self.pieces.append(piece)
        self._came.set()

    async def sees(self, text: bytes) -> None:
        async with asyncio.timeout(20):
            while text not in b"".join(self.pieces):
                self._came.clear()
                await self._came.wait()


async def test_output_is_seen_before_the_command_ends(sandbox: RemoteSandbox) -> None:
    viewer = Viewer()
    command = {"command": "echo first; until [ -e go ]; do sleep 0.01; done; echo second"}
    call = asyncio.create_task(sandbox.call_tool("bash", command, timeout_s=20, on_output=viewer))
    await viewer.sees(b"first\n")
    assert not call.done()
    await sandbox.upload("go", b"")
    result = await call
    assert result.output == "first\nsecond\n"
    assert b"".join(viewer.pieces) == b"first\nsecond\n"


async def test_streaming_is_coalesced_and_bounded_and_keeps_the_result(
    sandbox: RemoteSandbox,
) -> None:
    command = "seq 300000; sleep 0.2; seq 10"
    plain = await bash(sandbox, command)
    viewer = Viewer()
    loop = asyncio.get_running_loop()
    started = loop.time()
    watched = await sandbox.call_tool("bash", {"command": command}, timeout_s=20, on_output=viewer)
    assert watched == plain
    assert len(viewer.pieces) <= (loop.time() - started) / INTERVAL_S + 2
    assert all(len(piece) <= PIECE_BYTES + 100 for piece in viewer.pieces)
    seen = b"".join(viewer.pieces)
    assert seen.startswith(b"1\n2\n3\n")
    assert seen.endswith(b"\n8\n9\n10\n")
    assert b"bytes omitted" in seen


async def test_a_viewer_sees_only_the_output_of_its_own_call(
    sandbox: RemoteSandbox,
) -> None:
    viewer = Viewer()
    await sandbox.call_tool("bash", {"command": "echo one"}, timeout_s=20, on_output=viewer)
    await bash(sandbox, "echo two")
    assert b"".join(viewer.pieces) == b"one\n"


async def test_a_failing_viewer_fails_its_call_but_not_the_shell(sandbox: RemoteSandbox) -> None:
    def broken(piece: bytes) -> None:
        raise LookupError("of the viewer")

    command = {"command": "KEPT=kept; echo x; sleep 1000"}
    with pytest.raises(LookupError, match="of the viewer"):
        await sandbox.call_tool("bash", command, timeout_s=1000, on_output=broken)
    assert (await bash(sandbox, "echo $KEPT")).output == "kept\n"
