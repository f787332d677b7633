"""Containers that sandboxes are forked from, on a host that fails."""

import asyncio
import logging
from contextlib import AsyncExitStack

import pytest

from prorl_service.errors import SandboxError
from prorl_service.sandbox.host.zygotes import Container
from prorl_service.sandbox.kinds.process import ProcessSandboxProvider
from tests.sandbox.sandboxes import Kind, new_provider, output, started

pytestmark = pytest.mark.processes


async def test_a_container_that_cannot_be_cleaned_up_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    launch = ProcessSandboxProvider._launch

    def refuse() -> None:
        raise OSError("the disk is gone")

    async def launch_on_bad_disk(
        self: ProcessSandboxProvider, key: str, resources: AsyncExitStack
    ) -> Container:
        resources.callback(refuse)
        return await launch(self, key, resources)

    monkeypatch.setattr(ProcessSandboxProvider, "_launch", launch_on_bad_disk)
    async with new_provider("process") as provider, started(provider) as sandbox:
        assert await output(sandbox, "echo it works") == "it works"
    (record,) = caplog.records
    assert record.levelno == logging.CRITICAL
    assert "container '' failed: OSError('the disk is gone')" in record.getMessage()


@pytest.mark.parametrize("kind", ["process", "bubblewrap"])
async def test_a_provider_closes_while_others_start_sandboxes(kind: Kind) -> None:
    provider = new_provider(kind)

    async def start_until_closed() -> None:
        while True:
            async with started(provider) as sandbox:
                await output(sandbox, "true")

    async with provider:
        starting = [asyncio.create_task(start_until_closed()) for _ in range(3)]
        async with started(provider):
            pass
    async with asyncio.timeout(30):
        found = await asyncio.gather(*starting, return_exceptions=True)
    assert all(isinstance(one, SandboxError) for one in found), found
    with pytest.raises(SandboxError, match="their provider is closed"):
        await start_until_closed()
