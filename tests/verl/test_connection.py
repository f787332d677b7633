"""Connection of a trainer to its service, and what the two tell each other."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from prorl_service import local
from prorl_service.client import RolloutClient
from prorl_service.client.engine_gateway import Completion
from prorl_service.schemas import BackendState
from prorl_verl.checks import BadConfiguration
from prorl_verl.connection import Connection
from prorl_verl.engines import Engines
from prorl_verl.settings import settings_of
from tests.tokens.swapped_model import with_tokens_swapped
from tests.verl.test_settings import config

OPTIONS = ["--sandbox", "process"]


@pytest.fixture(autouse=True)
def _certain_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes engines, of which there are none, answer the probe of their logprobs."""

    async def generate(*given: Any) -> Completion:
        count = given[4]
        return Completion([1] * count, [0.0] * count, [0] * count)

    monkeypatch.setattr(Engines, "generate", generate)


def connection(url: str, model: Path, tokenizer: Path) -> Connection:
    """Returns a connection; `tokenizer` is the service's."""
    sections = config(
        prorl__url=url,
        prorl__tokenizer=str(tokenizer),
        actor_rollout_ref__model={"path": str(model)},
    )
    return Connection(sections, settings_of(sections), llm_client=None, training=None)


async def test_the_gateway_is_an_engine_that_the_service_can_call(
    policy: Path, tmp_path: Path
) -> None:
    with local.service([], log=tmp_path / "service.log", options=OPTIONS) as service:
        met = await connection(service.url, policy, policy).start()
        with RolloutClient(service.url) as client:
            (backend,) = client.backends()
            assert (backend.url, backend.state) == (met.url, BackendState.HEALTHY)
            assert backend.max_calls == 768
            await asyncio.to_thread(met.give_up, [], None)
            assert not client.backends()
    await met._lease.stop()


async def test_another_tokenizer_of_the_same_size_is_refused(policy: Path, tmp_path: Path) -> None:
    other = with_tokens_swapped(policy, tmp_path / "other")
    with local.service([], log=tmp_path / "service.log", options=OPTIONS) as service:
        refused = connection(service.url, other, policy)
        with pytest.raises(BadConfiguration, match="the trainer's tokenizer"):
            await refused.start()
