"""Several fronts as one service: asks those that a request's `spread` calls for.

A group goes to the first front in its ranking. It goes to the next if no connection with that front
can be established. Once a submission may have arrived, the group stays where it was sent, whatever
happens: a front that was lost has it in its journal. Each answer is waited for as long as that of
one front is: `retry_s` after the last sign of progress.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from http import HTTPStatus
from typing import Any, Protocol, TypeVar

from prorl_service.client import merging, requests
from prorl_service.client.cells import engine_key, group_id_of, places_of, ranking
from prorl_service.client.errors import ServiceCallError, WaitTimeout
from prorl_service.client.requests import Answer, Request
from prorl_service.client.retries import Backoff
from prorl_service.client.sampler_parts import SamplerParts
from prorl_service.client.spreads import (
    AtEngine,
    AtOne,
    ByEngine,
    ByGroup,
    Everywhere,
    Submission,
)
from prorl_service.errors import ProRLError
from prorl_service.schemas import BackendSpec, BackendStatus, Group, Rollout
from prorl_service.utils.tasks import all_of, cancel_all

SEARCHES = 16
"""Groups that are looked for at a time."""
SLOW_S = 1.0
"""Time after which a connection that was not made is worth avoiding, in seconds."""
MAX_AHEAD = 16
"""Rollouts of a stream that are read before the caller takes them."""

Received = TypeVar("Received")
Value = TypeVar("Value")


class Front(Protocol):
    """One front's client."""

    def send(self, request: Request[Answer], retry_s: float | None = None) -> Awaitable[Answer]: ...

    def check_known(self, rollout_id: str) -> Awaitable[None]:
        """Asks once. Raises `ServiceCallError`, of status 404 if it does not know the rollout."""


class Fronts:
    def __init__(self, fronts: Mapping[str, Front], retry_s: float) -> None:
        self._fronts = fronts
        self._retry_s = retry_s
        self._places = places_of(fronts)
        self._samplers = SamplerParts(fronts, self._places, retry_s)

    async def send(self, request: Request[Answer]) -> Answer:
        """Raises `ServiceCallError`, and `ProRLError` for a request that is asked of one front."""
        answer: Answer = await self._spread(request)
        return answer

    async def _spread(self, request: Request[Any]) -> Any:
        match request.spread:
            case None:
                raise asked_of_one(f"{request.method} {request.path}", self._fronts)
            case Everywhere(join, each):
                return join(await self._everywhere(each or request))
            case AtOne(group_id):
                return await self.find(group_id, lambda front: self._once(front, request))
            case AtEngine(key, is_new):
                return await self._at_engine(key, request, is_new=is_new)
            case ByGroup() as by_group:
                return await self._by_group(by_group)
            case ByEngine(owner, backends):
                return await self._by_engine(owner, backends)
            case Submission() as submission:
                return await self._submit(submission)
            case of_sampler:
                return await self._samplers.send(of_sampler)

    async def _once(self, front: str, request: Request[Answer]) -> Answer:
        return await self._fronts[front].send(request, retry_s=0)

    async def _everywhere(self, request: Request[Answer]) -> dict[str, Answer]:
        answers = await all_of(one.send(request) for one in self._fronts.values())
        return dict(zip(self._fronts, answers, strict=True))

    # --- engines ----------------------------------------------------------------------------------

    async def _at_engine(self, key: str, request: Request[Answer], *, is_new: bool) -> Answer:
        order = ranking(self._fronts, key)
        if is_new:
            return await self._fronts[order[0]].send(request)
        answer, _ = await self._first_of(order, lambda front: self._once(front, request))
        return answer

    async def _by_engine(self, owner: str, backends: Sequence[BackendSpec]) -> list[BackendStatus]:
        parts: dict[str, list[BackendSpec]] = {front: [] for front in self._fronts}
        for one in backends:
            parts[ranking(self._fronts, engine_key(one.url))[0]].append(one)
        answers = await all_of(
            self._fronts[front].send(requests.put_backends(owner, part))
            for front, part in parts.items()
        )
        return [one for answer in answers for one in answer]

    # --- groups that are somewhere ----------------------------------------------------------------

    async def find(self, group_id: str, call: Callable[[str], Awaitable[Answer]]) -> Answer:
        """Returns what `call` returns for the front that has the group. `call` must not retry."""
        known = self._places.find(group_id)
        order = ranking(self._fronts, group_id) if known is None else [known]
        answer, front = await self._first_of(order, call)
        self._places.remember([group_id], front)
        return answer

    async def _first_of(
        self, order: Sequence[str], call: Callable[[str], Awaitable[Answer]]
    ) -> tuple[Answer, str]:
        """Returns the first answer that is no 404, and its front. One that is out of reach may have
        what others do not: it is asked again."""
        backoff = Backoff(self._retry_s)
        missing: ServiceCallError | None = None
        while True:
            failures: dict[str, ServiceCallError] = {}
            for front in order:
                try:
                    return await call(front), front
                except ServiceCallError as error:
                    if error.http_status == HTTPStatus.NOT_FOUND:
                        missing = missing or error
                    elif error.retryable:
                        failures[front] = error
                    else:
                        raise
            if not failures:
                assert missing is not None
                raise missing
            order = list(failures)
            await asyncio.sleep(backoff.delay_s(failures[order[0]]))

    async def _by_group(self, spread: ByGroup) -> Any:
        if spread.forgets:
            keys = [spread.key(one) for one in spread.ids]
            parts, unknown = self._places.divide(keys)
            parts = {front: [*parts.get(front, []), *unknown] for front in self._fronts}
        else:
            parts = await self._locate(spread.ids)
        answers = await all_of(
            self._fronts[front].send(spread.part(ids)) for front, ids in parts.items() if ids
        )
        if spread.forgets:
            self._places.forget(keys)
        return spread.join(answers, spread.ids)

    async def _locate(self, rollout_ids: Iterable[str]) -> dict[str, list[str]]:
        """Returns the rollouts at each front. Raises `ServiceCallError`, of status 404 if none has
        a rollout."""
        members: defaultdict[str, list[str]] = defaultdict(list)
        for one in rollout_ids:
            members[group_id_of(one)].append(one)
        _, unknown = self._places.divide(members)
        if unknown:
            await self._search({group_id: members[group_id][0] for group_id in unknown})
        parts, _ = self._places.divide(members)
        return {
            front: [one for key in keys for one in members[key]] for front, keys in parts.items()
        }

    async def _search(self, members: Mapping[str, str]) -> None:
        """Remembers where groups are, each named with one of its rollouts."""
        room = asyncio.Semaphore(SEARCHES)

        async def search(group_id: str, member: str) -> None:
            async with room:
                await self.find(group_id, lambda front: self._fronts[front].check_known(member))

        tasks = [asyncio.create_task(search(*one)) for one in members.items()]
        try:
            await asyncio.gather(*tasks)
        finally:
            await cancel_all(tasks)

    # --- new groups -------------------------------------------------------------------------------

    async def _submit(self, submission: Submission) -> list[Rollout]:
        refused: dict[str, ServiceCallError] = {}
        backoff = Backoff(self._retry_s)
        accepted: list[list[Rollout]] = []
        left = list(submission.groups)
        while left:
            parts: defaultdict[tuple[str, bool], list[Group]] = defaultdict(list)
            for group in left:
                known = self._places.find(group.group_id)
                front = known or self._places.choose(group.group_id, refused)
                if front is not None:
                    parts[front, known is not None].append(group)
            if not parts:
                await asyncio.sleep(backoff.delay_s(next(iter(refused.values()))))
                refused.clear()
                continue
            tries = [
                self._submit_at(front, groups, submission, refused, is_known=is_known)
                for (front, is_known), groups in parts.items()
            ]
            answers = await all_of(tries)
            accepted += answers
            ended = {one.group_id for answer in answers for one in answer}
            left = [group for group in left if group.group_id not in ended]
        ids = [one for group in submission.groups for one in group.rollout_ids()]
        return merging.rollouts(accepted, ids)

    async def _submit_at(
        self,
        front: str,
        groups: Sequence[Group],
        submission: Submission,
        refused: dict[str, ServiceCallError],
        *,
        is_known: bool,
    ) -> list[Rollout]:
        """Returns nothing if the groups are new, and the front is out of reach: `refused` says so.

        `is_known`: the front may have them.
        """
        request = requests.submit(groups, submission.invalid)
        backoff = Backoff(self._retry_s)
        while True:
            began = time.monotonic()
            try:
                answer = await self._once(front, request)
            except ServiceCallError as error:
                if not error.was_sent and not is_known:
                    if time.monotonic() > began + SLOW_S:
                        self._places.avoid(front)
                    refused[front] = error
                    return []
                if _may_have_arrived(error):
                    is_known = True
                    self._places.remember((one.group_id for one in groups), front)
                await asyncio.sleep(backoff.delay_s(error))
            else:
                self._places.remember((one.group_id for one in groups), front)
                return answer

    # --- streams ----------------------------------------------------------------------------------

    async def stream(
        self,
        rollout_ids: Iterable[str],
        timeout_s: float,
        each: Mapping[str, Callable[[Sequence[str], float], AsyncGenerator[Received, None]]],
        id_of: Callable[[Received], str],
    ) -> AsyncGenerator[Received, None]:
        """Yields what the streams of `each` front yield for the rollouts there. Raises
        `WaitTimeout` with what all have still to send."""
        pending = dict.fromkeys(rollout_ids)
        deadline = time.monotonic() + timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                parts = await self._locate(pending)
        except TimeoutError:
            raise WaitTimeout(list(pending), timeout_s) from None
        arrivals: asyncio.Queue[Received | Exception] = asyncio.Queue(MAX_AHEAD)

        async def pump(front: str, ids: Sequence[str]) -> None:
            try:
                async with aclosing(each[front](ids, deadline - time.monotonic())) as received:
                    async for one in received:
                        await arrivals.put(one)
            except Exception as error:
                await arrivals.put(error)

        pumps = [asyncio.create_task(pump(front, ids)) for front, ids in parts.items()]
        try:
            while pending:
                one = await arrivals.get()
                if isinstance(one, WaitTimeout):
                    raise WaitTimeout(list(pending), timeout_s) from None
                if isinstance(one, Exception):
                    raise one
                del pending[id_of(one)]
                yield one
        finally:
            await cancel_all(pumps)


def content_for_each(content: Iterable[Value]) -> Iterable[Value]:
    """Returns content that can be read once for each front. Raises `ProRLError`."""
    if iter(content) is content:
        raise ProRLError(
            "weights for several fronts are read once for each, and an iterator only once",
            hint="pass a list, an object with `__iter__`, or a path to `load_weights`",
        )
    return content


def asked_of_one(what: str, fronts: Iterable[str]) -> ProRLError:
    return ProRLError(f"{what} is answered by one front: name one of {', '.join(fronts)}")


def _may_have_arrived(error: ServiceCallError) -> bool:
    """Returns whether a submission that failed so may have been accepted."""
    is_refusal = error.http_status is not None and 400 <= error.http_status < 500
    return error.was_sent and not is_refusal and error.error.kind != "ServiceStopping"
