"""Rollouts that begin with turns of another one, as clients, people and a front ask for them."""

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from prorl_service.client import AsyncRolloutClient, ServiceCallError
from prorl_service.schemas import (
    BackendSpec,
    Group,
    Message,
    Replay,
    Rollout,
    RolloutState,
    Start,
    Task,
)
from prorl_service.schemas.arrays import PACKED_MEDIA_TYPE
from prorl_service.schemas.sampling import DrawSpec, DrawState, SamplerSpec
from prorl_service.testing import StubEngine
from prorl_service.tokens.chat import ChatFormat
from tests.cli.try_process import COMMAND, done
from tests.front.conftest import service
from tests.parts import trajectory_of
from tests.server.application import Settings, serving

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def group(name: str, start: Start | None = None, n: int = 1) -> Group:
    data = {"answer": "42", "files": {"secret": "42"}}
    question = Message(role="user", content="What is in the file?")
    task = Task(task_id="t", agent="math", messages=[question], data=data)
    return Group(group_id=name, task=task, n=n, start=start)


async def ended(client: AsyncRolloutClient, group: Group) -> list[Rollout]:
    await client.submit([group])
    found = await client.wait(group.rollout_ids(), 120)
    assert [one.state for one in found] == [RolloutState.DONE] * group.n, found
    return found


async def assert_branches(client: AsyncRolloutClient, engine: StubEngine) -> None:
    """They have the first turn of a rollout that is here, or of one that is given."""
    [first] = await ended(client, group("first"))
    assert len(trajectory_of(first).turns) == 2
    name, calls = first.rollout_id, engine.calls
    named = await ended(client, group("named", Start(rollout_id=name, turns=1), n=2))
    given = Start(turns=1, trajectory=first.trajectory)
    for one in [*named, *await ended(client, group("given", given))]:
        segments = trajectory_of(one).segments
        assert [one.response_ids for one in segments] == [
            one.response_ids for one in trajectory_of(first).segments
        ]
        [turn, own] = trajectory_of(one).turns
        assert sum(segments[0].loss_mask) == own.stop - own.start
        assert (turn.is_replayed, own.is_replayed, one.reward) == (True, False, 1)
    assert engine.calls == calls + 3


async def test_a_client_names_or_gives_the_turns(
    client: AsyncRolloutClient, engine: StubEngine
) -> None:
    await assert_branches(client, engine)
    text = await client.text("named.0")
    assert text.replay is not None
    assert (text.replay.rollout_id, text.replay.turns) == ("first.0", 1)
    assert [turn.is_replayed for turn in text.turns] == [True, False]
    with pytest.raises(ServiceCallError, match="turns is 2, and must be less than its 2 turns"):
        await client.submit([group("all", Start(rollout_id="first.0", turns=2))])


async def test_a_front_gives_services_the_turns(
    engine: StubEngine, settings: Settings, tmp_path: Path
) -> None:
    front = Settings(services=tmp_path / "services", backends=settings.backends)
    with service("a", tmp_path), service("b", tmp_path):
        async with serving(front) as url, AsyncRolloutClient(url) as client:
            await assert_branches(client, engine)


async def test_a_person_goes_on_from_a_turn(
    client: AsyncRolloutClient, url: str, tiny_model: Path, tmp_path: Path
) -> None:
    await ended(client, group("first"))
    (tmp_path / "replies.txt").write_text("It is \\boxed{41}.")
    command = [*COMMAND, "--from", "first.0", "--turns", "1", "--url", url, "--sandbox", "process"]
    options = ["--replies", "replies.txt", "--tokenizer", str(tiny_model), "--json", "out.jsonl"]
    tried = await asyncio.to_thread(done, [*command, *options], tmp_path)
    assert (tried.returncode, tried.stderr) == (0, "")
    assert "replayed" in tried.stdout
    assert "says | It is \\boxed{41}." in tried.stdout
    rollout = Rollout.model_validate(json.loads((tmp_path / "out.jsonl").read_text()))
    assert rollout.reward == 0
    assert rollout.replay is not None
    assert rollout.replay.rollout_id == "first.0"
    for turns, problem in (
        ("2", "turns is 2, and must be less than its 2 turns"),
        ("1", "no rollout"),
    ):
        name = "first.0" if turns == "2" else "nobody.0"
        wrong = ["--from", name, "--turns", turns, "--url", url, "--replies", "replies.txt"]
        refused = await asyncio.to_thread(done, [*COMMAND, *wrong], tmp_path)
        assert refused.returncode == 2
        assert problem in refused.stderr


@pytest.mark.parametrize("has_solution", [True, False], ids=["solution", "earlier success"])
async def test_groups_that_failed_get_a_head_start(
    has_solution: bool, tiny_model: Path, chat: ChatFormat, settings: Settings, tmp_path: Path
) -> None:
    """A policy that looks once by itself if there is no solution, and reads half of what it sees.
    A front in between."""
    looks = Message.calling("bash", command="cat secret")
    seen, looked = 0, has_solution

    def answer(prompt: list[int]) -> list[int]:
        nonlocal seen, looked
        if not looked:
            looked = True
            return chat.reply_ids(looks)
        seen += (has_looked := "<tool_response>\n42" in chat.decode(prompt))
        text = "\\boxed{42}" if has_looked and seen % 2 else "\\boxed{0}"
        return chat.reply_ids(text)

    candidates = [group("first", n=4), group("second", n=4)][has_solution:]
    if has_solution:
        candidates[0].task.solution = [looks.model_dump(mode="json"), "\\boxed{42}"]
    async with StubEngine(tiny_model, answer) as engine:
        backends = (BackendSpec(url=engine.url),)
        front = Settings(services=tmp_path / "services", backends=backends)
        with service("a", tmp_path):
            async with serving(front) as url, AsyncRolloutClient(url) as client:
                await client.create_sampler("s", SamplerSpec(head_start=True, groups_at_once=1))
                await client.add_candidates("s", candidates, is_last=True)
                status = await client.open_draw("s", "d", DrawSpec(target=len(candidates)))
                while status.draw is None or status.draw.state is DrawState.OPEN:
                    status = await client.sampler("s", status.revision, 10)
                assert (status.head_started, status.draw.state) == (1, DrawState.COMPLETE)
                drawn = status.draw.groups[-1]
                found = await client.wait([f"{drawn.group_id}.{index}" for index in range(4)], 60)
    assert sorted(one.reward or 0 for one in found) == [0, 0, 1, 1]
    assert [one.replay for one in found] == [Replay(turns=1)] * 4
    for one in found:
        [first, answered] = trajectory_of(one).turns
        assert (first.is_replayed, answered.is_replayed) == (True, False)
        assert first.tool_calls[0].output.strip() == "42"


async def test_siblings_send_what_they_share_once(
    client: AsyncRolloutClient, http: httpx.AsyncClient, chat: ChatFormat
) -> None:
    long = group("long", n=8)
    words = " ".join(str(number) for number in range(150))
    long.task.messages = [Message(role="user", content=f"What is in the file? {words}")]
    await ended(client, long)
    asked = {"rollout_ids": long.rollout_ids()}
    packed = {"Accept": PACKED_MEDIA_TYPE}

    async def streamed(encoding: str) -> tuple[int, bytes]:
        headers = {**packed, "Accept-Encoding": encoding}
        stream = http.stream("POST", "/v1/rollouts/stream", json=asked, headers=headers)
        async with stream as response:
            content = await response.aread()
            return response.num_bytes_downloaded, content

    plain, content = await streamed("identity")
    assert plain == len(content)
    once, same = await streamed("zstd")
    assert sorted(same.splitlines()) == sorted(content.splitlines())
    prompt = len(chat.prompt_ids(long.task.messages)) * 4
    assert once < plain - 6 * prompt
