"""Rollouts whose results another service holds: they end again if that is lost."""

from collections import Counter

from prorl_service.rollouts import references
from prorl_service.rollouts.journal import Journal
from prorl_service.rollouts.journal.tables import AcceptedRow, EndedRow
from prorl_service.schemas import RolloutState


def row(index: int, answer: bytes, attempt: int = 1) -> EndedRow:
    return EndedRow(f"g.{index}", "g", attempt, RolloutState.DONE, b"summary", answer)


async def totals(journal: Journal) -> tuple[int, int]:
    """Returns the bytes of all ended groups, and of all groups."""
    query = "SELECT (SELECT bytes FROM totals), (SELECT coalesce(sum(bytes), 0) FROM groups)"
    found: tuple[int, int] = await journal.read(lambda db: db.execute(query).fetchone())
    return found


async def test_only_results_of_lost_services_end_again() -> None:
    async with Journal() as journal:
        await journal.accept([AcceptedRow("g", 4, b"{}", 1.0)])
        names = ("a", 'b"', "a")
        for index, name in enumerate(names):
            await journal.begin(f"g.{index}", 1)
            await journal.end(row(index, references.reference(name)))
        await journal.end(row(3, b'{"rollout_id":"g.3"}'))
        held = await journal.read(lambda db: references.holders(db, ["g", "other"]))
        assert held == {"a": {"g"}, 'b"': {"g"}}

        assert await journal.write(references.reopen("g", "c".__eq__)) is None
        reopened = await journal.write(references.reopen("g", "a".__eq__))
        assert reopened is not None
        assert reopened.states == Counter({RolloutState.DONE: 2})
        assert reopened.group.attempts == {"g.0": 1, "g.2": 1}
        assert reopened.group.ended == {"g.1", "g.3"}
        assert (await totals(journal))[0] == 0
        assert await journal.answer("g.0") is None
        assert await journal.write(references.reopen("g", "a".__eq__)) is None, "it has not ended"

        for index in (0, 2):
            await journal.end(row(index, references.reference("d"), attempt=2))
        ended, existing = await totals(journal)
        assert ended == existing
        assert await journal.forget(["g"]) == Counter({RolloutState.DONE: 4})
        assert await totals(journal) == (0, 0)
