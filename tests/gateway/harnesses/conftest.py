from collections.abc import AsyncIterator

import pytest

from prorl_service.sandbox.base import SandboxProvider
from tests.sandbox.sandboxes import ISOLATED, new_provider


@pytest.fixture(params=ISOLATED)
async def isolating(request: pytest.FixtureRequest) -> AsyncIterator[SandboxProvider]:
    async with new_provider(request.param) as provider:
        yield provider
