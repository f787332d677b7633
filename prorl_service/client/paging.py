"""All pages of a list, one after the other: the newest first, no rollout left out or repeated."""

from collections.abc import Iterator

from prorl_service.client.views import ViewMethods
from prorl_service.schemas.views import (
    MAX_ROWS,
    GroupQuery,
    GroupRows,
    RolloutQuery,
    RolloutRows,
    RowFilter,
)


def rollout_pages(
    client: ViewMethods, wanted: RowFilter, most: int | None = None
) -> Iterator[RolloutRows]:
    """Yields pages with at most `most` rollouts together; None: with all. Raises
    `ServiceCallError`."""
    left, before = most, None
    while left is None or left > 0:
        page = client.rollouts(RolloutQuery.model_validate(_page(wanted, left, before)))
        yield page
        left = None if left is None else left - len(page.rollouts)
        before = page.next
        if before is None:
            return


def group_pages(
    client: ViewMethods, wanted: GroupQuery, most: int | None = None
) -> Iterator[GroupRows]:
    """Yields as `rollout_pages` does. What `wanted` says of pages does not count."""
    left, before = most, None
    while left is None or left > 0:
        page = client.groups(GroupQuery.model_validate(_page(wanted, left, before)))
        yield page
        left = None if left is None else left - len(page.groups)
        before = page.next
        if before is None:
            return


def _page(wanted: RowFilter, left: int | None, before: str | None) -> dict[str, object]:
    limit = MAX_ROWS if left is None else min(left, MAX_ROWS)
    return {**dict(wanted), "limit": limit, "before": before}
