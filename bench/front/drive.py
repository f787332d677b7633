"""Drives a front: groups in a closed loop, read without being parsed, so that it costs little."""

import asyncio
import time
from dataclasses import dataclass
from uuid import uuid4

import aiohttp
import psutil

from prorl_service.net.credentials import authorization
from prorl_service.schemas import Group, GroupIds, Message, StreamRequest, Task
from prorl_service.schemas import SubmitRequest as Submission
from prorl_service.schemas.arrays import PACKED_MEDIA_TYPE

GROUP_SIZE = 8
AT_ONCE = 16
"""Groups in flight."""


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def group(tokens: int) -> Group:
    message = Message(role="user", content="word " * 80)
    data = {"tokens": tokens}
    task = Task(task_id="t", agent="one_call", messages=[message], data=data)
    return Group(group_id=uuid4().hex, task=task, n=GROUP_SIZE)


@dataclass(slots=True)
class Driver:
    http: aiohttp.ClientSession
    url: str
    read_bytes: int = 0

    async def run(self, groups: int, tokens: int) -> float:
        """Runs that many groups; returns the seconds that they took."""
        waiting = [group(tokens) for _ in range(groups)]

        async def work() -> None:
            while waiting:
                await self._one(waiting.pop())

        began = time.perf_counter()
        async with asyncio.TaskGroup() as workers:
            for _ in range(AT_ONCE):
                workers.create_task(work())
        return time.perf_counter() - began

    async def _one(self, submitted: Group) -> None:
        await self._post("/v1/rollouts", Submission(groups=[submitted]).model_dump_json())
        ids = submitted.rollout_ids()
        body = StreamRequest(rollout_ids=ids).model_dump_json()
        async with self.http.post(f"{self.url}/v1/rollouts/stream", data=body) as answer:
            answer.raise_for_status()
            lines = [line async for line in answer.content if line.strip()]
        if len(lines) != len(ids) or not all(b'"state":"done"' in line for line in lines):
            raise RuntimeError(f"not {len(ids)} rollouts that are done: {lines[:1]}")
        for line in lines:
            self.read_bytes += len(line)
        acknowledged = GroupIds(group_ids=[submitted.group_id]).model_dump_json()
        await self._post("/v1/groups/acknowledge", acknowledged)

    async def _post(self, path: str, body: str) -> None:
        async with self.http.post(self.url + path, data=body) as answer:
            answer.raise_for_status()
            await answer.read()


def session(url: str) -> aiohttp.ClientSession:
    headers = {
        "Accept": PACKED_MEDIA_TYPE,
        "Content-Type": "application/json",
        **authorization(url),
    }
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        headers=headers,
        timeout=aiohttp.ClientTimeout(total=None),
        read_bufsize=2**24,
    )
