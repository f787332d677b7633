"""Trajectories hold the pictures of tasks and tools, and a trainer's model sees the same."""

import io
import signal
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from safetensors.torch import save_file
from transformers import AutoModelForImageTextToText

from prorl_service import local
from prorl_service.cli.conversation import show_rollout
from prorl_service.cli.screen import Screen
from prorl_service.client import AsyncRolloutClient, RolloutClient, ServiceCallError
from prorl_service.inference.reference_engine.tiny import build_tiny_model
from prorl_service.schemas import (
    BackendSpec,
    Group,
    Rollout,
    RolloutState,
    Sampling,
    Start,
)
from prorl_service.schemas.pictures import canonical, id_of, shown
from prorl_service.testing import StubEngine
from prorl_service.tokens.chat import ChatFormat
from tests import real_engines
from tests.parts import trajectory_of
from tests.pictures import FILE, largest_difference, looking, png
from tests.server.application import Settings, serving
from tests.trainers import async_trainer

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SEEN = canonical(FILE.encode())
EXACT, SWAPPED = 1e-4, 0.5
GREEDY = Sampling(temperature=0.0, max_tokens_per_turn=8)
"""Sampling that is the same on engines that take no seeds: another may sample the placeholder."""
ENGINES = [one for one in real_engines.ENGINES if one != "sglang"]
"""Engines that take pictures; vLLM with `scripts/test-vllm`."""


@pytest.fixture(scope="module", params=ENGINES)
def seeing(
    request: pytest.FixtureRequest, seeing_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    log = tmp_path_factory.mktemp("logs") / "log"
    with real_engines.engine(request.param, seeing_model, log=log) as engine:
        yield engine.url


@pytest.fixture
async def client(seeing: str, settings: Settings) -> AsyncIterator[AsyncRolloutClient]:
    own = replace(settings, backends=(BackendSpec(url=seeing),))
    async with serving(own) as url, AsyncRolloutClient(url) as connected:
        yield connected


async def ended(client: AsyncRolloutClient, group: Group) -> list[Rollout]:
    await client.submit([group])
    found = await client.wait(group.rollout_ids(), 120)
    assert [one.state for one in found] == [RolloutState.DONE] * group.n, found
    return found


async def test_the_policy_sees_the_pictures_of_its_task(
    client: AsyncRolloutClient, seeing_model: Path
) -> None:
    first, second, other = png(seed=1), png(84, 56, seed=2), png(seed=3)
    found = await ended(client, looking("two", first, second, n=2, sampling=GREEDY))
    for trajectory in map(trajectory_of, found):
        [segment] = trajectory.segments
        assert [*shown(segment.prompt_ids)] == [id_of(first), id_of(second)]
        contents = trajectory.contents()
        assert contents == {id_of(one): one for one in (first, second)}
        assert largest_difference(seeing_model, segment, contents) < EXACT
        swapped = {**contents, id_of(first): other}
        assert largest_difference(seeing_model, segment, swapped) > SWAPPED


async def test_the_policy_sees_the_pictures_of_its_tools(
    client: AsyncRolloutClient, seeing_model: Path
) -> None:
    """A head start makes the call; a branch sees what was seen then."""
    question = png(seed=1)
    tool = looking("tool", question, start=Start(share=1.0), sampling=GREEDY)
    [rollout] = await ended(client, tool)
    start = Start(rollout_id=rollout.rollout_id, turns=1)
    [branched] = await ended(client, looking("branch", question, start=start, sampling=GREEDY))
    screen = io.StringIO()
    show_rollout(Screen(screen), await client.text(rollout.rollout_id))
    assert screen.getvalue().count("shows 1 picture: see the page") == 2
    foreign = trajectory_of(rollout).model_copy(update={"pictures": {}})
    lacks = looking("lacks", question, start=Start(turns=1, trajectory=foreign))
    with pytest.raises(ServiceCallError, match="of no vocabulary and no picture"):
        await client.submit([lacks])
    for trajectory in (trajectory_of(rollout), trajectory_of(branched)):
        [segment] = trajectory.segments
        assert [*shown(segment.response_ids)] == [id_of(SEEN)]
        assert trajectory.pictures.keys() == {id_of(question)}
        contents = trajectory.contents()
        assert contents[id_of(SEEN)] == SEEN
        assert largest_difference(seeing_model, segment, contents) < EXACT
        swapped = {**contents, id_of(SEEN): canonical(FILE.replace("255 0 0", "0 0 0").encode())}
        assert largest_difference(seeing_model, segment, swapped) > 100 * EXACT


async def test_the_policy_sees_with_new_weights(
    seeing: str, tmp_path: Path, settings: Settings
) -> None:
    """An engine may keep what old weights made of a picture. The last weights are the first."""
    own = replace(settings, backends=(BackendSpec(url=seeing),))
    async with serving(own) as url, async_trainer(url) as client:
        for number, seed in enumerate([0, 1, 0]):
            model = tmp_path / f"{number}"
            build_tiny_model(model, sees=True, seed=seed)
            module = AutoModelForImageTextToText.from_pretrained(model)
            names_of_trainers = module.state_dict()
            save_file(names_of_trainers, model / "model.safetensors", metadata={"format": "pt"})
            await client.load_weights(str(model))
            [rollout] = await ended(client, looking(f"{number}", png(seed=1), sampling=GREEDY))
            trajectory = trajectory_of(rollout)
            [segment] = trajectory.segments
            assert largest_difference(model, segment, trajectory.contents()) < EXACT


def test_a_rollout_goes_on_after_a_restart_with_what_it_saw(
    seeing: str, seeing_model: Path, tmp_path: Path
) -> None:
    """The service is stopped while the turn after the tool's picture is being sampled."""
    asked = looking("restart", png(seed=1), start=Start(share=1.0), sampling=GREEDY)
    journal = ["--journal", str(tmp_path / "journal.sqlite"), "--resume"]
    options = [*journal, "--sandbox", "bubblewrap", "--save-every-s", "0"]
    log, [id_] = tmp_path / "log", asked.rollout_ids()
    with local.service([seeing], log=log, options=options) as running:
        httpx.post(f"{seeing}/pause", trust_env=False).raise_for_status()
        try:
            with RolloutClient(running.url) as client:
                client.submit([asked])
                while not client.text(id_).turns:
                    time.sleep(0.05)
            running.process.send_signal(signal.SIGTERM)
            running.process.wait(60)
        finally:
            httpx.post(f"{seeing}/resume", trust_env=False).raise_for_status()
    with (
        local.service([seeing], log=log, options=options) as running,
        RolloutClient(running.url) as client,
    ):
        [rollout] = client.wait([id_], 120)
    assert [one.turn for one in rollout.resumed] == [1]
    trajectory = trajectory_of(rollout)
    assert len(trajectory.turns) > 1
    [segment], contents = trajectory.segments, trajectory.contents()
    assert contents.keys() == {id_of(png(seed=1)), id_of(SEEN)}
    assert largest_difference(seeing_model, segment, contents) < EXACT


async def test_what_cannot_be_shown_is_refused_at_submission(
    client: AsyncRolloutClient, settings: Settings, tiny_model: Path, chat: ChatFormat
) -> None:
    with pytest.raises(ServiceCallError, match="the picture cannot be read") as refused:
        await client.submit([looking("broken", png()[:-50])])
    assert refused.value.fields[0].field == "groups.0.task.messages"
    program = looking("program", png()).model_copy(deep=True)
    program.task.agent = "harness"
    async with StubEngine(tiny_model, lambda _: chat.reply_ids("1")) as engine:
        own = replace(settings, backends=(BackendSpec(url=engine.url),))
        async with serving(own) as url, AsyncRolloutClient(url) as blind:
            with pytest.raises(ServiceCallError, match="which this model does not see"):
                await blind.submit([looking("blind", png())])
