"""Branches: their exactness, their time to the first call of the model, and their bytes.

Rollouts of random commands have a branch at every turn. The bytes are those of a stream of eight
siblings that begin with the same turns, plain and as clients get them.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory

import httpx

from bench import frame
from prorl_service import local
from prorl_service.agents.registry import AgentRegistry
from prorl_service.client import AsyncRolloutClient
from prorl_service.net.credentials import authorization
from prorl_service.schemas import (
    Group,
    Limits,
    Message,
    Rollout,
    Start,
    Task,
    Trajectory,
)
from prorl_service.schemas.arrays import PACKED_MEDIA_TYPE
from prorl_service.server.settings import ServiceSettings
from prorl_service.testing.replies import Reply, call
from prorl_service.testing.scripted_engine import ScriptedEngine, scripted_engine
from prorl_service.testing.trial import rollouts, trial_service

ANSWER = "\\boxed{42}"


def measure_branches(quick: bool) -> frame.Found:
    found = asyncio.run(_branches(2 if quick else 20))
    exact, starts_s = [one for one, _ in found], [taken_s for _, taken_s in found]
    headline = {
        "branch_exact": sum(exact) / len(exact),
        "branches": len(found),
        "branch_start_ms_p50": round(1000 * median(starts_s), 1),
    }
    return frame.Found([headline], headline)


async def _branches(count: int) -> list[tuple[bool, float]]:
    """Returns, for each branch, whether prompt and files were those of then, and the seconds to its
    first call."""
    found = []
    async with (
        scripted_engine([]) as engine,
        trial_service(AgentRegistry(), [engine.spec], ServiceSettings()) as service,
    ):

        async def played(name: str, replies: Sequence[Reply], start: Start | None) -> Rollout:
            engine.give(name, [replies])
            question = Message(role="user", content="What is 6 * 7?")
            task = Task(task_id="t", agent="math", messages=[question], data={"answer": "42"})
            group = Group(group_id=name, task=task, start=start)
            await service.submit([group])
            [ended] = [one async for one in rollouts(service, group)]
            return ended

        for number in range(count):
            rng = Random(number)
            turns = rng.randrange(2, 9)
            commands = [f"echo {rng.random()} >> {rng.choice('abc')}; cat *" for _ in range(turns)]
            calls = [call("bash", command=one) for one in commands]
            first = await played(f"g{number}", [*calls, ANSWER], None)
            for turn in range(1, turns + 1):
                looks: list[Reply] = [call("bash", command="cat *"), ANSWER]
                start = Start(rollout_id=first.rollout_id, turns=turn)
                branch = await played(f"g{number}-{turn}", looks, start)
                found.append((_is_exact(engine, first, branch, turn), _start_s(branch, turn)))
    return found


def _is_exact(engine: ScriptedEngine, first: Rollout, branch: Rollout, turn: int) -> bool:
    then, now = _trajectory(first), _trajectory(branch)
    segment = then.segments[0]
    seen = segment.prompt_ids + segment.response_ids[: then.turns[turn].start]
    prompt = engine.prompts[branch.rollout_id][0]
    wanted = then.turns[turn - 1].tool_calls[0].output
    return prompt == seen and now.turns[turn].tool_calls[0].output == wanted


def _start_s(branch: Rollout, turn: int) -> float:
    began_at = _trajectory(branch).turns[turn].started_at
    assert began_at is not None
    return began_at - branch.created_at


def _trajectory(rollout: Rollout) -> Trajectory:
    assert rollout.trajectory is not None, rollout.error
    return rollout.trajectory


def measure_wire(quick: bool) -> frame.Found:
    plain, sent = asyncio.run(_streamed(turns=10 if quick else 40))
    headline = {
        "plain_bytes": plain,
        "sent_bytes": sent,
        "prefix_bytes_saved_share": round(1 - sent / plain, 3),
    }
    return frame.Found([headline], headline)


async def _streamed(turns: int) -> tuple[int, int]:
    """Returns the bytes of a group's stream, plain and compressed."""
    with TemporaryDirectory(prefix="prorl-bench-") as name:
        async with scripted_engine([]) as engine:
            with local.service([], log=Path(name) / "log") as service:
                return await _bytes_of_group(engine, service.url, turns)


async def _bytes_of_group(engine: ScriptedEngine, url: str, turns: int) -> tuple[int, int]:
    question = Message(role="user", content="What is 6 * 7?")
    task = Task(task_id="t", agent="math", messages=[question], data={"answer": "42"})
    calls = [call("bash", command=f"seq {number} {number + 200}") for number in range(turns)]
    limits = Limits(max_turns=turns + 2)
    groups = [Group(group_id="first", task=task, limits=limits)]
    start = Start(rollout_id="first.0", turns=turns)
    groups.append(Group(group_id="siblings", task=task, n=8, start=start, limits=limits))
    engine.give("first", [[*calls, ANSWER]])
    engine.give("siblings", [[ANSWER]])
    sizes = []
    async with AsyncRolloutClient(url) as client:
        spec = engine.spec
        await client.add_backend(spec.url, spec.tokenizer, api_key=spec.api_key)
        for group in groups:
            await client.submit([group])
            await client.wait(group.rollout_ids(), 600)
    body = {"rollout_ids": groups[1].rollout_ids()}
    headers = {**authorization(url), "Accept": PACKED_MEDIA_TYPE}
    async with httpx.AsyncClient(base_url=url, headers=headers, trust_env=False) as http:
        for encoding in ("identity", "zstd"):
            accepts = {"Accept-Encoding": encoding}
            stream = http.stream("POST", "/v1/rollouts/stream", json=body, headers=accepts)
            async with stream as response:
                await response.aread()
                sizes.append(response.num_bytes_downloaded)
    return sizes[0], sizes[1]
