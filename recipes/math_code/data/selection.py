"""Selects the rows of a data set to use: converted, with an answer that can be scored, each
question once, without the questions to keep out."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from prorl_service.errors import InvalidRequest
from recipes.common.data.fields import Row, RowError
from recipes.common.data.preparation import ROWS, Rejected
from recipes.common.data.rows import problems_in
from recipes.common.data.sources import Source
from recipes.math_code.data.catalogue import DataSet, convert
from recipes.math_code.data.golds import Golds, answer_of
from recipes.math_code.data.questions import key, loose
from recipes.math_code.rows import PROBLEM, CodeProblem, Problem

BATCH = 64
"""Rows whose answers are checked concurrently."""
CONFLICT = "the question occurs again with another answer"


def questions_of(directories: Iterable[Path]) -> dict[str, str]:
    """Maps the questions of prepared directories, in the loose form, to the directories' names.

    Raises `InvalidRequest`.
    """
    asked: dict[str, str] = {}
    for directory in directories:
        try:
            with (directory / ROWS).open(newline="\n") as lines:
                for line in lines:
                    asked.setdefault(loose(PROBLEM.validate_json(line).asked), directory.name)
        except (OSError, ValueError) as error:
            hint = "name directories that this command has prepared"
            reason = problems_in(error) if isinstance(error, ValidationError) else repr(error)
            raise InvalidRequest.of_field("without", f"{directory}: {reason}", hint=hint) from None
    return asked


@dataclass(slots=True)
class Selection:
    """`write` is called with each problem that is used, in order. `conflicting`: ids of those that
    later turned out to be unusable."""

    data_set: DataSet
    golds: Golds
    write: Callable[[Problem], None]
    kept_out: Mapping[str, str] = field(default_factory=dict)
    """Questions to keep out, in the loose form, and the directory that has each."""
    rows_read: int = 0
    other_rows: int = 0
    """Rows of another part of the data set."""
    repeated: int = 0
    accepted: int = 0
    rejected: list[Rejected] = field(default_factory=list)
    conflicting: set[str] = field(default_factory=set)
    _asked: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Id and answer of each question that is used."""
    _ids: set[str] = field(default_factory=set)

    @property
    def problems(self) -> int:
        return self.accepted - len(self.conflicting)

    async def select(
        self, source: Source, limit: int | None = None, on_row: Callable[[], None] = lambda: None
    ) -> None:
        """Selects among all rows, or stops after the first `limit` that can be used. Raises
        `EvaluatorError`, and `InvalidRequest` for rows that cannot be read."""
        batch: list[tuple[Row, Problem]] = []
        for fields in source.rows:
            if limit is not None and self.accepted + len(batch) >= limit:
                await self._settle(batch)
                batch = []
                if self.accepted >= limit:
                    return
            self.rows_read += 1
            on_row()
            batch += self._converted(Row(fields, f"row {self.rows_read}"))
            # Programs have no answer to check, but tests that may take megabytes.
            if len(batch) == BATCH or (batch and isinstance(batch[-1][1], CodeProblem)):
                await self._settle(batch)
                batch = []
        await self._settle(batch)

    def _converted(self, row: Row) -> Sequence[tuple[Row, Problem]]:
        try:
            problem = convert(self.data_set, row)
        except RowError as error:
            self._reject(row, error)
            return []
        if problem is None:
            self.other_rows += 1
            return []
        return [(row, problem)]

    async def _settle(self, batch: Sequence[tuple[Row, Problem]]) -> None:
        faults = await asyncio.gather(*(self.golds.fault(problem) for _, problem in batch))
        for (row, problem), fault in zip(batch, faults, strict=True):
            if fault:
                self._reject(row, row.error(fault, answer_of(problem)[:80]))
            else:
                await self._accept(row, problem)

    async def _accept(self, row: Row, problem: Problem) -> None:
        question = key(problem.asked)
        first, gold = self._asked.get(question, ("", ""))
        if first and await self.golds.same(problem, gold):
            self.repeated += 1
        elif first:
            self._reject(row, row.error(CONFLICT, f"that of {first}"))
            if first not in self.conflicting:
                self.conflicting.add(first)
                self._reject(Row({}, first), row.error(CONFLICT, f"that of {row.where}"))
        elif where := self.kept_out.get(loose(problem.asked)):
            self._reject(row, row.error("the question is to be kept out", where))
        elif problem.problem_id in self._ids:
            self._reject(row, row.error("its id occurred before", problem.problem_id))
        else:
            self._asked[question] = (problem.problem_id, answer_of(problem))
            self._ids.add(problem.problem_id)
            self.accepted += 1
            self.write(problem)

    def _reject(self, row: Row, error: RowError) -> None:
        self.rejected.append(Rejected(instance=row.where, reason=error.reason, detail=str(error)))
