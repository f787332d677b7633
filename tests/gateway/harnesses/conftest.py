from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from prorl_service.sandbox.base import SandboxProvider
from tests.sandbox.engines import ENGINES
from tests.sandbox.sandboxes import ISOLATED, new_provider

ON_DEMAND = [
    pytest.param(kind, marks=pytest.mark.on_demand) if kind in ENGINES else kind
    for kind in ISOLATED
]


@pytest.fixture(params=ON_DEMAND)
async def isolating(request: pytest.FixtureRequest) -> AsyncIterator[SandboxProvider]:
    async with new_provider(request.param) as provider:
        yield provider


@pytest.fixture
def store_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Directory in which this test alone installs harnesses."""
    path = tmp_path / "harnesses"
    monkeypatch.setenv("PRORL_HARNESSES", str(path))
    return path
