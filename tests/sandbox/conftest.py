import os
import tempfile
from collections.abc import AsyncIterator, Iterator

import pytest

from prorl_service.sandbox.base import SandboxProvider
from prorl_service.sandbox.host.sandbox import RemoteSandbox
from tests.sandbox.sandboxes import DOCKER, ISOLATED, KINDS, Kind, new_provider, running, started


@pytest.fixture(autouse=True, scope="session")
def own_temporary_directory() -> Iterator[None]:
    """Keeps leftovers of this run's sandboxes apart from those of other test runs."""
    with tempfile.TemporaryDirectory() as path, pytest.MonkeyPatch.context() as patch:
        os.chmod(path, 0o711)  # containers may be another user's
        patch.setattr(tempfile, "tempdir", path)
        yield


@pytest.fixture(params=[*KINDS, DOCKER])
def kind(request: pytest.FixtureRequest) -> Kind:
    kind: Kind = request.param
    return kind


@pytest.fixture
async def sandbox(kind: Kind) -> AsyncIterator[RemoteSandbox]:
    async with running(kind) as sandbox:
        yield sandbox


@pytest.fixture(params=[*ISOLATED, DOCKER])
async def isolating(request: pytest.FixtureRequest) -> AsyncIterator[SandboxProvider]:
    """Yields a provider of each kind that isolates."""
    async with new_provider(request.param) as provider:
        yield provider


@pytest.fixture
async def isolated(isolating: SandboxProvider) -> AsyncIterator[RemoteSandbox]:
    async with started(isolating) as sandbox:
        yield sandbox
