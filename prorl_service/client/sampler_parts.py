"""One sampler over several fronts: each has a part of the sampler, and does its share of a draw."""

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Protocol

from prorl_service.client import merging, requests
from prorl_service.client.cells import Places, allot, candidate_key, draw_shares, sampler_share
from prorl_service.client.errors import ServiceCallError
from prorl_service.client.requests import Answer, Request
from prorl_service.client.retries import Backoff
from prorl_service.client.spreads import (
    Drawing,
    Feeding,
    Polling,
    SamplerCreation,
    SamplerDeletion,
    SamplerSpread,
)
from prorl_service.schemas import Group
from prorl_service.schemas.sampling import SamplerStatus
from prorl_service.utils.tasks import all_of, cancel_all


class Front(Protocol):
    """One front's client. `retry_s`: seconds of retries; None for the client's own."""

    def send(self, request: Request[Answer], retry_s: float | None = None) -> Awaitable[Answer]: ...


class SamplerParts:
    def __init__(self, fronts: Mapping[str, Front], places: Places, retry_s: float) -> None:
        self._fronts = fronts
        self._places = places
        self._retry_s = retry_s
        self._backoffs: dict[str, Backoff] = {}
        """Fronts that fail. Kept over polls, each of which ends as soon as one front answers."""
        self._found: dict[str, dict[str, SamplerStatus]] = {}
        """Newest status of each sampler at each front."""
        self._draws: dict[str, str] = {}
        """Newest draw of each sampler that this client opened."""

    async def send(self, spread: SamplerSpread) -> SamplerStatus | None:
        """Returns the status of all parts as one. Raises `ServiceCallError`."""
        match spread:
            case SamplerDeletion(sampler_id):
                await self._delete(sampler_id)
                return None
            case SamplerCreation(sampler_id, spec):
                part = requests.create_sampler(sampler_id, sampler_share(spec, len(self._fronts)))
                await self._note(sampler_id, dict.fromkeys(self._fronts, part))
            case Drawing(sampler_id, draw_id, draw):
                shares = draw_shares(list(self._fronts), draw_id, draw)
                self._draws[sampler_id] = draw_id
                parts = {
                    front: requests.open_draw(sampler_id, draw_id, share)
                    for front, share in shares.items()
                }
                await self._note(sampler_id, parts)
            case Feeding(sampler_id, groups, is_last):
                await self._feed(sampler_id, groups, is_last=is_last)
            case Polling(sampler_id, after, wait_s):
                await self._poll(sampler_id, after, wait_s)
        return self._whole(spread.sampler_id)

    def _whole(self, sampler_id: str) -> SamplerStatus:
        return merging.sampler_statuses(self._found[sampler_id], self._draws.get(sampler_id))

    async def _note(self, sampler_id: str, parts: Mapping[str, Request[SamplerStatus]]) -> None:
        await all_of(self._note_one(sampler_id, *part) for part in parts.items())

    async def _note_one(self, sampler_id: str, front: str, request: Request[SamplerStatus]) -> None:
        status = await self._ask(front, request)
        self._found.setdefault(sampler_id, {})[front] = status
        if status.draw is not None:
            self._places.remember((one.group_id for one in status.draw.groups), front)

    async def _ask(self, front: str, request: Request[SamplerStatus]) -> SamplerStatus:
        while True:
            try:
                status = await self._fronts[front].send(request, retry_s=0)
            except ServiceCallError as error:
                await asyncio.sleep(self._delay_s(front, error))
            else:
                self._backoffs.pop(front, None)
                return status

    def _delay_s(self, front: str, error: ServiceCallError) -> float:
        """Returns the seconds until the next try. Raises `error` if there is to be none."""
        backoff = self._backoffs.setdefault(front, Backoff(self._retry_s))
        try:
            return backoff.delay_s(error)
        except ServiceCallError:
            del self._backoffs[front]
            raise

    async def _look(self, sampler_id: str) -> None:
        now = requests.sampler(sampler_id, -1, 0)
        await self._note(sampler_id, dict.fromkeys(self._fronts, now))

    def _is_known(self, sampler_id: str) -> bool:
        return len(self._found.get(sampler_id, {})) == len(self._fronts)

    async def _feed(self, sampler_id: str, groups: Sequence[Group], *, is_last: bool) -> None:
        if not self._is_known(sampler_id):
            await self._look(sampler_id)
        wanted = {front: one.wanted for front, one in self._found[sampler_id].items()}
        parts = allot(self._places, sampler_id, groups, wanted)
        for front, part in parts.items():  # first of all: what is fed again must go there again
            self._places.remember((candidate_key(sampler_id, one.group_id) for one in part), front)
        await self._note(
            sampler_id,
            {
                front: requests.add_candidates(sampler_id, part, is_last)
                for front, part in parts.items()
                if part or is_last
            },
        )

    async def _poll(self, sampler_id: str, after: int, wait_s: float) -> None:
        if not wait_s or not self._is_known(sampler_id) or self._is_news(sampler_id, after):
            await self._look(sampler_id)
            if not wait_s or self._is_news(sampler_id, after):
                return
        await _first_of(
            asyncio.create_task(
                self._note_one(
                    sampler_id, front, requests.sampler(sampler_id, status.revision, wait_s)
                )
            )
            for front, status in self._found[sampler_id].items()
        )

    def _is_news(self, sampler_id: str, after: int) -> bool:
        return self._whole(sampler_id).revision != after

    async def _delete(self, sampler_id: str) -> None:
        """Ignores fronts that do not have it, unless none has."""
        request = requests.delete_sampler(sampler_id)
        calls = (one.send(request) for one in self._fronts.values())
        found = await asyncio.gather(*calls, return_exceptions=True)
        errors = [one for one in found if isinstance(one, BaseException)]
        others = [one for one in errors if not _is_missing(one)]
        if others or len(errors) == len(self._fronts):
            raise [*others, *errors][0]
        self._found.pop(sampler_id, None)
        self._draws.pop(sampler_id, None)


def _is_missing(error: BaseException) -> bool:
    return isinstance(error, ServiceCallError) and error.http_status == HTTPStatus.NOT_FOUND


async def _first_of(tasks: Iterable["asyncio.Task[None]"]) -> None:
    """Returns or raises as the first task does, and cancels the others."""
    tasks = list(tasks)
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for one in done:
            one.result()
    finally:
        await cancel_all(tasks)
