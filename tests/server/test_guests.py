"""Backends that a trainer adds over HTTP: leased, with weights and a model of their own."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from prorl_service.client import AsyncRolloutClient, RolloutClient
from prorl_service.pipeline.config import PipelineConfig
from prorl_service.schemas import BackendStatus, RolloutState
from prorl_service.testing import StubEngine
from prorl_service.tokens.chat import ChatFormat
from tests.server.application import Settings, serving, until
from tests.server.scored_agent import SCORED, scored


@pytest.fixture
async def url() -> AsyncIterator[str]:
    settings = Settings(
        sandbox="process",
        agents=(SCORED,),
        pipeline=PipelineConfig(init_workers=1, run_workers=1, ready_rollouts=1),
    )
    async with serving(settings) as address:
        yield address


@pytest.fixture
def other_model(tiny_model: Path, tmp_path: Path) -> Path:
    """The tiny model, with a template whose prompts begin differently."""
    directory = tmp_path / "other"
    shutil.copytree(tiny_model, directory)
    template = directory / "chat_template.jinja"
    template.write_text(f"Otherwise. {template.read_text()}")
    return directory


async def test_a_leased_backend_is_removed_when_its_trainer_is_gone(
    url: str, client: AsyncRolloutClient, engine: StubEngine
) -> None:
    def train() -> BackendStatus:
        with RolloutClient(url) as trainer:
            trainer.add_backend(engine.url, lease_s=3600)
            return trainer.add_backend(engine.url, lease_s=0.1, max_calls=4)

    assert (await asyncio.to_thread(train)).model == "stub"
    await until(client.backends, lambda found: found == [])
    await client.add_backend(engine.url, lease_s=3600)
    assert await client.backends()


async def test_rollouts_begun_after_a_change_of_model_use_the_new_tokenizer(
    client: AsyncRolloutClient, engine: StubEngine, other_model: Path
) -> None:
    group = scored("g", *[1.0] * 5)
    group.task.data["sleep"] = [3600]
    await client.add_backend(engine.url)
    await client.submit([group])
    await until(lambda: client.get("g.2"), lambda rollout: rollout.state is RolloutState.READY)
    async with StubEngine(other_model, lambda _: [5]) as other:
        other.model_id = "other"
        await client.remove_backend(engine.url.removeprefix("http://"))
        await client.add_backend(other.url)
        await client.cancel(["g.0"])
        _, *begun, one, two = await client.wait(group.rollout_ids(), 60)
    for rollout in begun:
        assert rollout.error is not None
        assert "began with 'stub'" in rollout.error.message
    for rollout in (one, two):
        assert rollout.trajectory is not None
        prompt = rollout.trajectory.segments[0].prompt_ids
        assert prompt == ChatFormat.load(other_model).prompt_ids(group.task.messages)
