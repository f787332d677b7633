"""`prorl show`: one rollout as a conversation, or a group with its first difference."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from prorl_service.cli.conversation import show_rollout
from prorl_service.cli.lists import show_rollouts
from prorl_service.cli.screen import Screen
from prorl_service.cli.service import DEFAULT_URL, Url, connected
from prorl_service.cli.wording import number
from prorl_service.client import RolloutClient, ServiceCallError
from prorl_service.errors import ProRLError
from prorl_service.schemas.views import (
    GroupQuery,
    GroupRow,
    RolloutQuery,
    RolloutRow,
    RolloutText,
    TextTurn,
)
from prorl_service.utils.visible import visible_line

MOST_COMPARED = 64
BEFORE_CHARS = 40
AFTER_CHARS = 100
"""Characters shown before and after the place where texts part ways."""


def show(
    name: Annotated[str, Parameter(help="Id of a rollout or of a group.")],
    /,
    *,
    full: bool = False,
    html: Path | None = None,
    run: str | None = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Show a rollout as a conversation with its verdict, or how the rollouts of a group differ.

    Parameters
    ----------
    full
        Show long text whole.
    html
        Write the whole group to this file, as a page for a browser.
    run
        The run, where ids are used again (default: the latest).
    """
    screen = Screen(sys.stdout, full=full)
    with connected(url) as client:
        group = _group(client, name, run)
        if html is not None:
            _save(client, group or _group_of(client, name, run), run, html)
        elif group is not None:
            _show_group(screen, client, group)
        else:
            show_rollout(screen, client.text(name, run=run))


def _group(client: RolloutClient, name: str, run: str | None) -> GroupRow | None:
    """Returns the group of this name, if there is one."""
    found = client.groups(GroupQuery(group_id=name, run=run, limit=1)).groups
    return found[0] if found else None


def _group_of(client: RolloutClient, rollout_id: str, run: str | None) -> GroupRow:
    """Raises `ProRLError` if no group has such a rollout."""
    group_id = client.text(rollout_id, run=run).rollout.group_id
    group = _group(client, group_id, run)
    if group is None:
        raise ProRLError(f"group {group_id} is not listed")
    return group


def _save(client: RolloutClient, group: GroupRow, run: str | None, file: Path) -> None:
    page = client.page([group.group_id], run=run, title=f"Group {group.group_id}")
    try:
        file.write_bytes(page)
    except OSError as error:
        raise ProRLError(f"--html {file}: {error.strerror}") from None
    print(f"prorl: {len(page) / 1e3:.0f} kB written to {file}", file=sys.stderr)


# --- groups -------------------------------------------------------------------------------------


def _show_group(screen: Screen, client: RolloutClient, group: GroupRow) -> None:
    screen.line(f"{group.group_id}: {group.outcome.value.replace('_', ' ')}", "bold")
    query = RolloutQuery(group_id=group.group_id, run=group.run, limit=500)
    siblings = client.rollouts(query).rollouts
    show_rollouts(screen, siblings)
    texts = [
        text
        for row in siblings[:MOST_COMPARED]
        if row.has_content and (text := _text(client, row.rollout_id, group.run)) is not None
    ]
    if len(texts) > 1:
        screen.line("")
        _show_difference(screen, texts)


def _text(client: RolloutClient, rollout_id: str, run: str) -> RolloutText | None:
    """Returns None for one whose text is not kept."""
    try:
        return client.text(rollout_id, run=run)
    except ServiceCallError as error:
        if error.http_status == 404:
            return None
        raise


# --- the first difference -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ComparedStep:
    turn: int
    """Number of the turn, from 1."""
    what: str
    """Name of the step, such as "says"."""
    text: str


def _show_difference(screen: Screen, texts: Sequence[RolloutText]) -> None:
    """Shows the first step in which the rollouts differ, and which of them did the same there."""
    compared = zip_longest(*(_steps(one.turns) for one in texts))
    differing = next((steps for steps in compared if len(set(steps)) > 1), None)
    if differing is None:
        screen.line("they did the same, and so did their tools", "bold")
        return
    found = [step for step in differing if step is not None]
    turn = min(step.turn for step in found)
    is_one_step = len({(step.turn, step.what) for step in found}) == 1
    what = visible_line(found[0].what) if is_one_step else "what comes next"
    common = _common_length([step.text for step in found]) if is_one_step else 0
    screen.line(f"first difference: turn {turn}, {what}", "bold")
    alike: dict[ComparedStep | None, list[str]] = {}
    for text, step in zip(texts, differing, strict=True):
        alike.setdefault(step, []).append(_sibling(text.rollout))
    for step, siblings in alike.items():
        screen.note(", ".join(siblings))
        excerpt = "(had ended)" if step is None else _excerpt(step, common, is_one_step)
        screen.block("", excerpt, fold=True)


def _sibling(row: RolloutRow) -> str:
    name = "." + visible_line(row.rollout_id).rpartition(".")[2]
    return name if row.reward is None else f"{name} (reward {number(row.reward)})"


def _steps(turns: Sequence[TextTurn]) -> Iterator[ComparedStep]:
    for place, turn in enumerate(turns, 1):
        if turn.given is not None:
            yield ComparedStep(place, "given", turn.given)
        yield ComparedStep(place, "says", turn.raw)
        for call in turn.tool_calls:
            if call.output is not None:
                yield ComparedStep(place, f"output of {call.name}", call.output)


def _common_length(texts: Sequence[str]) -> int:
    """Returns the length of the longest beginning that all have."""
    first, last = min(texts), max(texts)  # the two that part first
    for place, (one, other) in enumerate(zip(first, last, strict=False)):
        if one != other:
            return place
    return min(len(first), len(last))


def _excerpt(step: ComparedStep, common: int, is_one_step: bool) -> str:
    start = max(0, common - BEFORE_CHARS)
    stop = common + AFTER_CHARS
    text = step.text[start:stop]
    begins = "..." if start else ""
    ends = "..." if stop < len(step.text) else ""
    name = "" if is_one_step else f"{step.what}: "
    return f"{name}{begins}{text}{ends}"
