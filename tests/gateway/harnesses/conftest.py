from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from prorl_service.sandbox.base import SandboxProvider
from tests.sandbox.sandboxes import ISOLATED, new_provider


@pytest.fixture(params=ISOLATED)
async def isolating(request: pytest.FixtureRequest) -> AsyncIterator[SandboxProvider]:
    async with new_provider(request.param) as provider:
        yield provider


@pytest.fixture
def store_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Directory in which this test alone installs harnesses."""
    path = tmp_path / "harnesses"
    monkeypatch.setenv("PRORL_HARNESSES", str(path))
    return path
