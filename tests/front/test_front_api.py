"""A front whose engine is a model behind an API: its services sample from it, and nobody trains."""

from pathlib import Path

import pytest

from prorl_service.client import ServiceCallError
from prorl_service.schemas import BackendSpec, PolicyClaim
from prorl_service.testing import StubApi
from tests.front.conftest import service
from tests.parts import trajectory_of
from tests.server.application import Settings, connected, finished, group
from tests.trainers import training

pytestmark = pytest.mark.processes


async def test_services_sample_from_the_fronts_model_and_no_training_claims_it(
    tmp_path: Path,
) -> None:
    async with StubApi(lambda _: "\\boxed{4711}") as api:
        api.api_key = "the-apis-key"
        spec = BackendSpec(kind="openai", model="stub", url=f"{api.url}/v1", api_key="the-apis-key")
        settings = Settings(services=tmp_path / "services", backends=(spec,))
        with service("a", tmp_path):
            async with connected(settings) as client:
                rollouts = await finished(client, group(n=2))
                with pytest.raises(ServiceCallError, match="cannot be trained"):
                    await client.claim_policy(PolicyClaim(training=training()))
    assert [one.reward for one in rollouts] == [1.0, 1.0]
    assert [trajectory_of(one).policy for one in rollouts] == ["stub", "stub"]
    assert len(api.requests) == 2
    assert "the-apis-key" not in (tmp_path / "a.log").read_text()
