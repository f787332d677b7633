"""Rows for a journal, with placeholders in place of JSON."""

from prorl_service.rollouts.journal.tables import AcceptedRow, EndedRow
from prorl_service.schemas import RolloutState


def accepted(group_id: str, n: int = 2) -> AcceptedRow:
    return AcceptedRow(group_id, n, b"{}", 1.0)


def ended(group_id: str, index: int = 0, size: int = 100) -> EndedRow:
    rollout_id = f"{group_id}.{index}"
    return EndedRow(rollout_id, group_id, 1, RolloutState.DONE, b"summary", b"x" * size)
