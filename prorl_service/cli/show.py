"""`prorl show`: one rollout as a conversation, or a group with its first difference."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from prorl_service.cli import rows
from prorl_service.cli.conversation import Block, Part, blocks
from prorl_service.cli.differences import Difference, first_difference, turns_by_id
from prorl_service.cli.screen import Screen
from prorl_service.cli.service import DEFAULT_URL, Url, connected
from prorl_service.cli.wording import number
from prorl_service.client import RolloutClient, ServiceCallError
from prorl_service.errors import ProRLError
from prorl_service.schemas.views import GroupQuery, GroupRow, RolloutQuery, RolloutText
from prorl_service.utils.visible import visible_line

MOST_COMPARED = 64


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
            for block in blocks(client.text(name, run=run)):
                show_block(screen, block)


def show_block(screen: Screen, block: Block) -> None:
    match block.part:
        case Part.TITLE:
            screen.line(block.text, block.style)
        case Part.NOTE:
            screen.note(block.text)
        case _:
            screen.block(block.label, block.text, block.style, fold=block.folds)


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
    screen.table(rows.rollout_table(siblings))
    for problem, hint in rows.failures(siblings):
        screen.line(problem, "red")
        if hint:
            screen.note(f"to do: {hint}")
    texts = [
        text
        for row in siblings[:MOST_COMPARED]
        if row.has_content and (text := _text(client, row.rollout_id, group.run)) is not None
    ]
    if len(texts) > 1:
        _show_difference(screen, first_difference(turns_by_id(texts)), texts)


def _text(client: RolloutClient, rollout_id: str, run: str) -> RolloutText | None:
    """Returns None for one whose text is not kept."""
    try:
        return client.text(rollout_id, run=run)
    except ServiceCallError as error:
        if error.status == 404:
            return None
        raise


def _show_difference(
    screen: Screen, difference: Difference | None, texts: Sequence[RolloutText]
) -> None:
    screen.line("")
    if difference is None:
        screen.line("they did the same, and so did their tools", "bold")
        return
    what = visible_line(difference.what)
    screen.line(f"first difference: turn {difference.turn}, {what}", "bold")
    rewards = {text.rollout.rollout_id: text.rollout.reward for text in texts}
    for variant in difference.variants:
        screen.note(", ".join(_sibling(one, rewards[one]) for one in variant.rollout_ids))
        screen.block("", "(had ended)" if variant.excerpt is None else variant.excerpt, fold=True)


def _sibling(rollout_id: str, reward: float | None) -> str:
    name = "." + visible_line(rollout_id).rpartition(".")[2]
    return name if reward is None else f"{name} (reward {number(reward)})"
