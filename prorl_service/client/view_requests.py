"""Requests for people's views, as data; see `requests`."""

from collections.abc import Sequence
from typing import Any

from prorl_service.client.cells import group_id_of
from prorl_service.client.requests import Request
from prorl_service.client.spreads import AtOne
from prorl_service.schemas.views import (
    AgentInfo,
    Agents,
    GroupQuery,
    GroupRows,
    RolloutQuery,
    RolloutRows,
    RolloutText,
    RowQuery,
    TokenSlice,
    Training,
)


def groups(query: GroupQuery) -> Request[GroupRows]:
    return Request("GET", "/v1/groups", GroupRows.model_validate_json, params=_params(query))


def rollouts(query: RolloutQuery) -> Request[RolloutRows]:
    return Request("GET", "/v1/rollouts", RolloutRows.model_validate_json, params=_params(query))


def text(rollout_id: str, run: str | None) -> Request[RolloutText]:
    path = f"/v1/rollouts/{rollout_id}/text"
    answer, spread = RolloutText.model_validate_json, AtOne(group_id_of(rollout_id))
    return Request("GET", path, answer, params=_given(run=run), spread=spread)


def tokens(
    rollout_id: str, segment: int, start: int, n: int, run: str | None
) -> Request[TokenSlice]:
    path = f"/v1/rollouts/{rollout_id}/tokens"
    params = _given(segment=segment, start=start, n=n, run=run)
    answer, spread = TokenSlice.model_validate_json, AtOne(group_id_of(rollout_id))
    return Request("GET", path, answer, params=params, spread=spread)


def page(group_ids: Sequence[str], run: str | None, title: str | None) -> Request[bytes]:
    params = _given(group_id=list(group_ids), run=run, title=title)
    return Request("GET", "/v1/page", bytes, params=params)


def training(run: str | None, agent: str | None) -> Request[Training]:
    params = _given(run=run, agent=agent)
    return Request("GET", "/v1/training", Training.model_validate_json, params=params)


def _agents(raw: bytes) -> list[AgentInfo]:
    return Agents.model_validate_json(raw).agents


AGENTS = Request("GET", "/v1/agents", _agents)


def _params(query: RowQuery) -> dict[str, Any]:
    return query.model_dump(mode="json", exclude_defaults=True)


def _given(**params: Any) -> dict[str, Any]:
    return {name: value for name, value in params.items() if value is not None}
