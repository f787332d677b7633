"""Ports inside that the service answers: programs of the sandbox reach them, and nobody else."""

import asyncio
import os
import socket

import pytest

from prorl_service.errors import SandboxError
from prorl_service.sandbox.host.handover import checked_listener
from prorl_service.sandbox.host.sandbox import RemoteSandbox
from tests.sandbox.sandboxes import bash, output

pytestmark = [pytest.mark.processes, pytest.mark.unprivileged]

ASK = "exec 3<>/dev/tcp/127.0.0.1/{port} && echo ping >&3 && head -n 1 <&3"


async def upper(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write((await reader.readline()).upper())
    await writer.drain()
    writer.close()


async def test_programs_inside_reach_a_port_of_the_service(in_any_kind: RemoteSandbox) -> None:
    await bash(in_any_kind, "KEPT=kept")
    listener = await in_any_kind.listen(0)
    port = listener.getsockname()[1]
    async with await asyncio.start_server(upper, sock=listener):
        assert await output(in_any_kind, ASK.format(port=port)) == "PING"
        many = " ".join(f"({ASK.format(port=port)}) &" for _ in range(20))
        assert (await output(in_any_kind, f"{many} wait")).count("PING") == 20
    assert await output(in_any_kind, "echo $KEPT") == "kept"


async def test_a_port_is_of_one_sandbox_alone(isolated: RemoteSandbox) -> None:
    listener = await isolated.listen(8123)
    with listener:
        assert listener.getsockname() == ("127.0.0.1", 8123)
        with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", 8123)):
            pass
        with pytest.raises(SandboxError, match=r"port 8123 cannot be opened inside: Address"):
            await isolated.listen(8123)


async def test_a_port_ends_with_its_socket(sandbox: RemoteSandbox) -> None:
    listener = await sandbox.listen(0)
    port = listener.getsockname()[1]
    listener.close()
    assert "refused" in (await bash(sandbox, ASK.format(port=port))).output


def test_a_descriptor_that_does_not_listen_on_loopback_is_refused() -> None:
    one, other = socket.socketpair()
    with one, other, socket.create_server(("0.0.0.0", 0)) as everywhere, open(os.devnull) as file:
        for wrong in (one, everywhere, file):
            with pytest.raises(SandboxError, match="no socket that listens"):
                checked_listener([os.dup(wrong.fileno())])
    with pytest.raises(SandboxError, match="no socket that listens"):
        checked_listener([])
