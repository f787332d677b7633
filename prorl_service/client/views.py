"""The client's methods for people: lists, texts, tokens, agents, training, events."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from prorl_service.client.calls import ServiceCalls
from prorl_service.client.retries import EventReception, ServiceRequest
from prorl_service.schemas.history import History
from prorl_service.schemas.training import Runs, Training
from prorl_service.schemas.views import (
    MAX_ROWS,
    AgentInfo,
    Agents,
    Event,
    GroupQuery,
    GroupRows,
    RolloutQuery,
    RolloutRows,
    RolloutText,
    RowFilter,
    RowQuery,
    TaskQuery,
    TaskRows,
    TokenSlice,
)


class ViewCalls(ServiceCalls):
    async def groups(self, query: GroupQuery | None = None) -> GroupRows:
        """Returns a page of groups in flight and ended, newest first."""
        return await self._get("/v1/groups", GroupRows, _params(query))

    async def rollouts(self, query: RolloutQuery | None = None) -> RolloutRows:
        """Returns a page of rollouts in flight and ended, newest first."""
        return await self._get("/v1/rollouts", RolloutRows, _params(query))

    async def group_pages(
        self, wanted: GroupQuery, most: int | None = None
    ) -> AsyncGenerator[GroupRows, None]:
        """Yields all pages, none of whose rows is left out or repeated, with at most `most` groups
        together; None: with all. What `wanted` says of pages does not count."""
        left, before = most, None
        while left is None or left > 0:
            page = await self.groups(GroupQuery.model_validate(_page(wanted, left, before)))
            yield page
            left = None if left is None else left - len(page.groups)
            before = page.next
            if before is None:
                return

    async def rollout_pages(
        self, wanted: RowFilter, most: int | None = None
    ) -> AsyncGenerator[RolloutRows, None]:
        """Yields pages of rollouts as `group_pages` does those of groups."""
        left, before = most, None
        while left is None or left > 0:
            page = await self.rollouts(RolloutQuery.model_validate(_page(wanted, left, before)))
            yield page
            left = None if left is None else left - len(page.rollouts)
            before = page.next
            if before is None:
                return

    async def text(self, rollout_id: str, *, run: str | None = None) -> RolloutText:
        """Returns the rollout as a conversation; `run` picks one if several runs have the id."""
        return await self._get(f"/v1/rollouts/{rollout_id}/text", RolloutText, _given(run=run))

    async def tokens(
        self,
        rollout_id: str,
        *,
        segment: int = 0,
        start: int = 0,
        n: int = 1024,
        run: str | None = None,
    ) -> TokenSlice:
        """Returns `n` tokens of a segment from `start` on; the prompt's come first."""
        params = _given(segment=segment, start=start, n=n, run=run)
        return await self._get(f"/v1/rollouts/{rollout_id}/tokens", TokenSlice, params)

    async def page(
        self, group_ids: Sequence[str], *, run: str | None = None, title: str | None = None
    ) -> bytes:
        """Returns whole groups as one HTML file, which needs no service."""
        params = _given(group_id=list(group_ids), run=run, title=title)
        return await self._send(ServiceRequest("GET", "/v1/page", bytes, params=params))

    async def training(
        self, *, run: str | None = None, agent: str | None = None, metrics: Sequence[str] = ()
    ) -> Training:
        """Returns statistics of `run`, or of the service's own run, by policy version. `metrics`:
        names of the trainer's own metrics to return, too."""
        params = _given(run=run, agent=agent, metric=list(metrics) or None)
        return await self._get("/v1/training", Training, params)

    async def history(self, since: float | None = None) -> History:
        """Returns the service's load from `since` on, at most 24 hours: a Unix time in seconds, or
        as many seconds before now, as a negative number."""
        return await self._get("/v1/history", History, _given(since=since))

    async def runs(self) -> list[str]:
        """Returns the runs that `training` and `tasks` can show, the service's own first."""
        return (await self._get("/v1/runs", Runs)).runs

    async def tasks(self, query: TaskQuery | None = None) -> TaskRows:
        """Returns a run by task: success, informative groups, failures."""
        params = {} if query is None else query.model_dump(mode="json", exclude_defaults=True)
        return await self._get("/v1/tasks", TaskRows, params)

    async def agents(self) -> list[AgentInfo]:
        return (await self._get("/v1/agents", Agents)).agents

    def events(self, last_id: str | None = None) -> AsyncGenerator[Event, None]:
        """Yields live events after the event `last_id`, or from now on. Reconnects when the
        connection breaks; the last event is `end`, when the service stops."""
        return self._receive(EventReception(last_id, self._retry_s))


def _params(query: RowQuery | None) -> dict[str, Any]:
    return {} if query is None else query.model_dump(mode="json", exclude_defaults=True)


def _given(**params: Any) -> dict[str, Any]:
    return {name: value for name, value in params.items() if value is not None}


def _page(wanted: RowFilter, left: int | None, before: str | None) -> dict[str, object]:
    limit = MAX_ROWS if left is None else min(left, MAX_ROWS)
    return {**dict(wanted), "limit": limit, "before": before}
