from collections.abc import AsyncIterator

import pytest

from prorl_service.sandbox.served import ServedSandbox
from tests.sandbox.helpers import Kind, running


@pytest.fixture(params=["process", "bubblewrap"])
def kind(request: pytest.FixtureRequest) -> Kind:
    kind: Kind = request.param
    return kind


@pytest.fixture
async def sandbox(kind: Kind) -> AsyncIterator[ServedSandbox]:
    async with running(kind) as sandbox:
        yield sandbox


@pytest.fixture
async def isolated() -> AsyncIterator[ServedSandbox]:
    async with running("bubblewrap") as sandbox:
        yield sandbox
