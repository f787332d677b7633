"""Speed and quality of scoring, next to verl's scorers, and results of hostile answers.

Math next to `verl.utils.reward_score.math_verify`, which calls the package math-verify, with as
many processes. Code next to `prime_code`, which runs programs as processes of the host; ours run
each in a fresh sandbox. The rows are made for this repository, and the share of tricky ones decides
the agreement, so every disagreement is listed with its reason.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from time import perf_counter
from typing import Any

from bench import result
from bench.rewards import code_rows, math_rows
from bench.rewards.contest import Reference, Standing, contest
from bench.rewards.hostile import CHEATS, HOSTILE_ANSWERS, HOSTILE_PROGRAMS
from bench.rewards.reasons import CODE_REASONS, MATH_REASONS
from prorl_service.agents.code.data import CodeData
from prorl_service.agents.code.evaluation import grade_solution
from prorl_service.errors import ProRLError
from prorl_service.rewards.code.host_speed import slowness
from prorl_service.rewards.math import boxed, score_math
from prorl_service.rewards.pool import ScoringAborted, ScoringPool
from prorl_service.sandbox.base import SandboxLimits
from prorl_service.sandbox.kinds.bubblewrap import BubblewrapProvider

SEED = 0
MATH_ROWS_PER_FAMILY, CODE_SETS = 40, 5
PROCESSES = 4
"""Processes of verl's pool and of ours, and sandboxes at a time."""
MATH_TURN, CODE_TURN = 200, 60
HANGS = "table-47"
PATIENCE_S = 120.0
"""Seconds for a hostile case. A case that takes longer counts as a hang."""

LENIENT = {"time_limit_s": 0.5, "partial_credit": True}
"""Settings under which all cases are run."""

Lines = list[dict[str, object]]
COLUMNS = ("part", "what", "rows", "rows_per_s", "right", "ours", "verl", "took_s", "note")


class Ours:
    def __init__(self) -> None:
        self._pool = ScoringPool(workers=PROCESSES)
        self._sandboxes = BubblewrapProvider()
        self._slots = asyncio.Semaphore(PROCESSES)

    async def math(self, reply: str, gold: str) -> float:
        """Scores as the math agent does."""
        answer = boxed(reply)
        if answer is None:
            return 0.0
        try:
            return await self._pool.score(score_math, PATIENCE_S, answer, gold)
        except ScoringAborted:
            return 0.0

    async def code(self, source: str, tests: dict[str, Any], **data: Any) -> float:
        """Grades as the code agent does; returns the share of cases if partial credit counts."""
        async with self._slots:
            sandbox = self._sandboxes.create(image=None, limits=SandboxLimits())
            try:
                await sandbox.start()
                solution = source.encode(errors="surrogateescape")
                report = await grade_solution(sandbox, CodeData(tests=tests, **data), solution)
            finally:
                await sandbox.stop()
        return report.share if "partial_credit" in data else float(report.all_passed)

    async def close(self) -> None:
        await self._sandboxes.close()
        await self._pool.close()


async def measure_math(ours: Ours, reference: Reference) -> tuple[Lines, dict[str, object]]:
    rows = math_rows.rows(MATH_ROWS_PER_FAMILY, seed=SEED)
    rows.sort(key=lambda row: row.name == HANGS)  # the last, in a turn of its own

    async def our(row: math_rows.Row) -> float:
        return await ours.math(row.reply, row.gold)

    def their(some: Sequence[math_rows.Row]) -> tuple[list[float], float]:
        return reference.score("math_verify", [(row.reply, row.gold) for row in some])

    standings = await contest(rows[:-1], our, their, turn=MATH_TURN)
    hangs = await contest(rows[-1:], our, their, turn=1)
    lines, headline = _told("math", rows[:-1], standings, MATH_REASONS)
    lines.append(
        _line(
            "math",
            HANGS,
            ours=hangs[0].scores[0],
            verl=hangs[1].scores[0],
            took_s=round(hangs[0].took_s, 1),
            note=f"runs into limits; verl took {hangs[1].took_s:.1f} s. Not in the rows per second",
        )
    )
    return lines, headline


async def measure_code(ours: Ours, reference: Reference) -> tuple[Lines, dict[str, object]]:
    rows = code_rows.rows(CODE_SETS, seed=SEED)
    standings = await contest(
        rows,
        lambda row: ours.code(row.source, row.tests),
        lambda some: reference.score("prime_code", [(row.source, row.tests) for row in some]),
        turn=CODE_TURN,
    )
    # prime_code gives the share of cases that passed.
    standings[1].scores = [float(score == 1) for score in standings[1].scores]
    return _told("code", rows, standings, CODE_REASONS)


def _told(
    part: str,
    rows: Sequence[math_rows.Row | code_rows.Row],
    standings: tuple[Standing, Standing],
    reasons: dict[str, str],
) -> tuple[Lines, dict[str, object]]:
    """Returns a line for each scorer and each disagreement, and the headline."""
    ours, theirs = standings
    truth = [float(row.right) for row in rows]
    lines = [
        _line(
            part,
            who,
            rows=len(rows),
            rows_per_s=round(standing.rows_per_s, 1),
            right=round(_agreement(standing.scores, truth), 4),
        )
        for who, standing in (("ours", ours), ("verl", theirs))
    ]
    for row, one, other in zip(rows, ours.scores, theirs.scores, strict=True):
        if one != other:
            note = reasons.get(row.name, "NOT EXPLAINED")
            lines.append(_line(part, row.name, ours=one, verl=other, note=note))
    return lines, {
        f"{part}_rows": len(rows),
        f"{part}_agreement": round(_agreement(ours.scores, theirs.scores), 4),
        f"{part}_rows_per_s_vs_reference": round(ours.rows_per_s / theirs.rows_per_s, 2),
    }


async def measure_hostile(ours: Ours, reference: Reference) -> tuple[Lines, dict[str, object]]:
    """A failure is a case that is rewarded, raises, or takes longer than `PATIENCE_S`."""
    cases: list[tuple[str, Awaitable[float]]] = [
        *((one.name, ours.math(one.reply, one.gold)) for one in HOSTILE_ANSWERS),
        *((one.name, ours.code(one.source, one.tests, **LENIENT)) for one in HOSTILE_PROGRAMS),
    ]
    lines = [await _outcome(name, scoring) for name, scoring in cases]
    fooled, _ = reference.score("prime_code", [(cheat.source, cheat.tests) for cheat in CHEATS])
    return lines, {
        "hostile_cases": len(lines),
        "hostile_failures": sum(line["ours"] != 0.0 for line in lines),
        "cheats_tried_on_reference": len(CHEATS),
        "cheats_rewarded_by_reference": fooled.count(1.0),
    }


async def _outcome(name: str, scoring: Awaitable[float]) -> dict[str, object]:
    started = perf_counter()
    try:
        score: object = await asyncio.wait_for(scoring, PATIENCE_S)
    except (ProRLError, TimeoutError) as error:
        score = repr(error)
    return _line("hostile", name, ours=score, took_s=round(perf_counter() - started, 2))


def _agreement(scores: Sequence[float], others: Sequence[float]) -> float:
    return sum(map(float.__eq__, scores, others)) / len(others)


def _line(part: str, what: str, **known: object) -> dict[str, object]:
    return {column: known.get(column) for column in COLUMNS} | {"part": part, "what": what}


async def measure() -> None:
    ours = Ours()
    lines: Lines = []
    headline: dict[str, object] = {}
    with Reference() as reference:
        for measured in (measure_math, measure_code, measure_hostile):
            print(f"{measured.__name__} ...", flush=True)
            more_lines, more = await measured(ours, reference)
            lines += more_lines
            headline |= more
    await ours.close()
    headline["slowness"] = round(slowness(), 2)
    result.write("rewards", lines, headline)


if __name__ == "__main__":
    asyncio.run(measure())
