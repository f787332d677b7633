"""Helpers shared by the tests of sampling: a service of `Scored` agents, and its draws."""

from prorl_service.client import AsyncRolloutClient
from prorl_service.schemas import BackendSpec
from prorl_service.schemas.sampling import Draw, DrawState
from prorl_service.testing import StubEngine
from tests.server.application import Settings
from tests.server.scored_agent import SCORED

INFORMATIVE = (0, 1, 0, 1)


def scored_settings(engine: StubEngine) -> Settings:
    """Returns the settings of a service that runs `Scored`."""
    return Settings(backends=(BackendSpec(url=engine.url),), sandbox="process", agents=(SCORED,))


async def drawn(client: AsyncRolloutClient, sampler_id: str = "s") -> Draw:
    status = await client.sampler(sampler_id)
    while True:
        assert status.draw is not None
        if status.draw.state is not DrawState.OPEN:
            return status.draw
        status = await client.sampler(sampler_id, status.revision, 10)
