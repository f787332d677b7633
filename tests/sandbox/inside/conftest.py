"""The guest is one program in all kinds: its tests run in bubblewrap, and on demand in the others.

Sandboxes of a module share a provider and an event loop. What the kinds do differently is tested
with `isolated` and `in_any_kind`.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from prorl_service.sandbox.base import SandboxProvider
from prorl_service.sandbox.host.sandbox import RemoteSandbox
from tests.sandbox.sandboxes import DOCKER, ISOLATED, KINDS, Kind, new_provider, started

HERE = Path(__file__).parent
IN_BUBBLEWRAP = [
    kind if kind == "bubblewrap" else pytest.param(kind, marks=pytest.mark.on_demand)
    for kind in (*KINDS, "docker")
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="module"), append=False)


@pytest.fixture(scope="module", params=IN_BUBBLEWRAP)
def kind(request: pytest.FixtureRequest) -> Kind:
    kind: Kind = request.param
    return kind


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def provider(kind: Kind) -> AsyncIterator[SandboxProvider]:
    async with new_provider(kind) as provider:
        yield provider


@pytest_asyncio.fixture(loop_scope="module")
async def sandbox(provider: SandboxProvider) -> AsyncIterator[RemoteSandbox]:
    async with started(provider) as sandbox:
        yield sandbox


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[*ISOLATED, DOCKER])
async def isolating(request: pytest.FixtureRequest) -> AsyncIterator[SandboxProvider]:
    async with new_provider(request.param) as provider:
        yield provider


@pytest_asyncio.fixture(loop_scope="module")
async def isolated(isolating: SandboxProvider) -> AsyncIterator[RemoteSandbox]:
    async with started(isolating) as sandbox:
        yield sandbox


@pytest_asyncio.fixture(loop_scope="module", params=[*KINDS, DOCKER])
async def in_any_kind(request: pytest.FixtureRequest) -> AsyncIterator[RemoteSandbox]:
    """Yields a sandbox of each kind."""
    async with new_provider(request.param) as provider, started(provider) as sandbox:
        yield sandbox
