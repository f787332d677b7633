"""`prorl list`: rollouts or groups of a service in a table, and why some of them failed."""

import sys
from collections.abc import Iterable
from typing import Annotated

from cyclopts import Parameter
from pydantic import PositiveInt

from prorl_service.cli import rows
from prorl_service.cli.screen import Screen
from prorl_service.cli.service import DEFAULT_URL, Url, connected
from prorl_service.client import RolloutClient
from prorl_service.schemas import Blame, FinishReason, RolloutState
from prorl_service.schemas.views import GroupOutcome, GroupQuery, RowFilter

MOST = 50
"""Rows that are listed unless more are asked for."""

Many = Parameter(consume_multiple=False)


def list_rollouts(
    *,
    groups: bool = False,
    run: str | None = None,
    agent: Annotated[list[str] | None, Many] = None,
    task: str | None = None,
    group: str | None = None,
    state: Annotated[list[RolloutState] | None, Many] = None,
    blame: Annotated[list[Blame] | None, Many] = None,
    finish_reason: Annotated[list[FinishReason] | None, Many] = None,
    outcome: Annotated[list[GroupOutcome] | None, Many] = None,
    policy_version: int | None = None,
    reward_min: float | None = None,
    reward_max: float | None = None,
    limit: PositiveInt = MOST,
    url: Url = DEFAULT_URL,
    as_json: Annotated[bool, Parameter("--json")] = False,
) -> None:
    """List rollouts or groups of a service, the newest first, and why some failed.

    Parameters
    ----------
    groups
        List groups.
    run
        Those of this run (default: all that the service knows).
    agent
        Those of this agent.
    task
        Those of this task.
    group
        Those of this group.
    state
        Those in this state.
    blame
        Those whose failure was this one's fault.
    finish_reason
        Those that ended for this reason.
    outcome
        Groups with this outcome; implies --groups.
    policy_version
        Those of this policy version.
    reward_min
        Those with at least this reward; of groups, the mean counts.
    reward_max
        Those with at most this reward.
    limit
        Most rows to list.
    as_json
        Print an object a line, for programs.
    """
    wanted = RowFilter(
        run=run,
        agent=agent or [],
        task_id=task,
        group_id=group,
        state=state or [],
        blame=blame or [],
        finish_reason=finish_reason or [],
        policy_version=policy_version,
        reward_min=reward_min,
        reward_max=reward_max,
    )
    screen = Screen(sys.stdout)
    with connected(url) as client:
        if groups or outcome:
            query = GroupQuery(**dict(wanted), outcome=outcome or [])
            _list_groups(screen, client, query, limit, as_json=as_json)
        else:
            _list_rollouts(screen, client, wanted, limit, as_json=as_json)


def _list_groups(
    screen: Screen, client: RolloutClient, query: GroupQuery, limit: int, *, as_json: bool
) -> None:
    pages = list(client.group_pages(query, limit))
    found = [row for page in pages for row in page.groups]
    if as_json:
        for row in found:
            screen.line(row.model_dump_json())
        return
    screen.table(rows.group_table(found))
    _say_more(screen, "groups", len(found), pages[-1].next, {page.notice for page in pages})


def _list_rollouts(
    screen: Screen, client: RolloutClient, wanted: RowFilter, limit: int, *, as_json: bool
) -> None:
    pages = list(client.rollout_pages(wanted, limit))
    found = [row for page in pages for row in page.rollouts]
    if as_json:
        for row in found:
            screen.line(row.model_dump_json())
        return
    screen.table(rows.rollout_table(found))
    for problem, hint in rows.failures(found):
        screen.line(problem, "red")
        if hint:
            screen.note(f"to do: {hint}")
    _say_more(screen, "rollouts", len(found), pages[-1].next, {page.notice for page in pages})


def _say_more(
    screen: Screen, what: str, count: int, following: str | None, notices: Iterable[str]
) -> None:
    if count == 0:
        screen.line(f"no {what} meet these conditions", "dim")
    if following is not None:
        screen.line(f"{count} {what}; there are more (--limit)", "dim")
    for notice in filter(None, notices):
        screen.line(notice, "yellow")
