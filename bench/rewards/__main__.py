"""Speed and quality of scoring, next to verl's scorers, and results of hostile answers.

`math` next to `verl.utils.reward_score.math_verify`, which calls the package math-verify, with as
many processes. `code` next to `prime_code`, which runs programs as processes of the host; ours run
each in a fresh sandbox. The share of tricky rows decides the agreement, so every disagreement is
listed with its reason. Ten minutes; needs `scripts/setup-verl`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter
from typing import Any

from bench import frame
from bench.rewards import rows
from bench.rewards.contest import Reference, Standing, contest
from bench.rewards.rows import ScoredRow
from prorl_service.agents.code.data import CodeData
from prorl_service.agents.code.evaluation import grade_solution
from prorl_service.errors import ProRLError
from prorl_service.rewards.math import boxed, score_math
from prorl_service.rewards.pool import ScoringAborted, ScoringPool
from prorl_service.sandbox.base import SandboxLimits
from prorl_service.sandbox.kinds.bubblewrap import BubblewrapProvider
from tests.rewards.hostile import CHEATS, HOSTILE_ANSWERS, HOSTILE_PROGRAMS

PROCESSES = 4
"""Processes of verl's pool and of ours, and sandboxes at a time."""
MATH_TURN, CODE_TURN, QUICK_ROWS = 200, 60, 20
HANGS = "table-47"
"""Row that runs into limits: it is not scored here."""
PATIENCE_S = 120.0
"""Seconds for a hostile case. A case that takes longer counts as a hang."""
LENIENT = {"time_limit_s": 0.5, "partial_credit": True}
"""Settings under which hostile programs are run."""


class Ours:
    """Scorers as the agents have them."""

    def __init__(self) -> None:
        self._pool = ScoringPool(workers=PROCESSES)
        self._sandboxes = BubblewrapProvider()
        self._slots = asyncio.Semaphore(PROCESSES)

    async def __aenter__(self) -> "Ours":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._sandboxes.close()
        await self._pool.close()

    async def math(self, reply: str, gold: str) -> float:
        answer = boxed(reply)
        if answer is None:
            return 0.0
        try:
            return await self._pool.score(score_math, PATIENCE_S, answer, gold)
        except ScoringAborted:
            return 0.0

    async def code(self, source: str, tests: dict[str, Any], **data: Any) -> float:
        """Returns the share of cases if partial credit counts."""
        async with self._slots:
            sandbox = self._sandboxes.create(image=None, limits=SandboxLimits())
            try:
                await sandbox.start()
                solution = source.encode(errors="surrogateescape")
                report = await grade_solution(sandbox, CodeData(tests=tests, **data), solution)
            finally:
                await sandbox.stop()
        return report.share if "partial_credit" in data else float(report.all_passed)


def math(quick: bool) -> frame.Found:
    scored = [row for row in rows.math() if row.name != HANGS]
    return _compared("math", "math_verify", scored[: QUICK_ROWS if quick else None], MATH_TURN)


def code(quick: bool) -> frame.Found:
    return _compared("code", "prime_code", rows.code()[: QUICK_ROWS if quick else None], CODE_TURN)


def _compared(part: str, scorer: str, scored: list[ScoredRow], turn: int) -> frame.Found:
    """Returns a line for each scorer and each disagreement."""
    ours, theirs = asyncio.run(_contested(part, scorer, scored, turn))
    truth = [float(row.right) for row in scored]
    lines = [_standing("ours", ours, truth), _standing("verl", theirs, truth)]
    for row, one, other in zip(scored, ours.scores, theirs.scores, strict=True):
        if one != other:
            note = rows.REASONS[part].get(row.name, "NOT EXPLAINED")
            lines.append({"what": row.name, "ours": one, "verl": other, "note": note})
    headline = {
        f"{part}_rows": len(scored),
        f"{part}_agreement": round(_agreement(ours.scores, theirs.scores), 4),
        f"{part}_rows_per_s_vs_reference": round(ours.rows_per_s / theirs.rows_per_s, 2),
    }
    return frame.Found(lines, headline)


def _standing(who: str, standing: Standing, truth: Sequence[float]) -> frame.Row:
    right = round(_agreement(standing.scores, truth), 4)
    speed = round(standing.rows_per_s, 1)
    return {"what": who, "rows": len(truth), "rows_per_s": speed, "right": right}


async def _contested(
    part: str, scorer: str, scored: list[ScoredRow], turn: int
) -> tuple[Standing, Standing]:
    with Reference() as reference:
        async with Ours() as ours:
            score: Callable[..., Awaitable[float]] = getattr(ours, part)
            return await contest(
                scored,
                lambda row: score(row.answer, row.truth),
                lambda some: reference.score(scorer, [(row.answer, row.truth) for row in some]),
                turn=turn,
            )


def hostile(quick: bool) -> frame.Found:
    """A failure is a case that is rewarded, raises, or takes longer than `PATIENCE_S`."""
    lines = asyncio.run(_hostile(2 if quick else None))
    with Reference() as reference:
        fooled, _ = reference.score("prime_code", [(cheat.source, cheat.tests) for cheat in CHEATS])
    headline = {
        "hostile_cases": len(lines),
        "hostile_failures": sum(line["ours"] != 0.0 for line in lines),
        "cheats_tried_on_reference": len(CHEATS),
        "cheats_rewarded_by_reference": fooled.count(1.0),
    }
    return frame.Found(lines, headline)


async def _hostile(most: int | None) -> list[frame.Row]:
    async with Ours() as ours:
        cases = [
            *((one.name, ours.math(one.reply, one.gold)) for one in HOSTILE_ANSWERS[:most]),
            *(
                (one.name, ours.code(one.source, one.tests, **LENIENT))
                for one in HOSTILE_PROGRAMS[:most]
            ),
        ]
        return [await _outcome(name, scoring) for name, scoring in cases]


async def _outcome(name: str, scoring: Awaitable[float]) -> frame.Row:
    started = perf_counter()
    try:
        score: object = await asyncio.wait_for(scoring, PATIENCE_S)
    except (ProRLError, TimeoutError) as error:
        score = repr(error)
    return {"what": name, "ours": score, "took_s": round(perf_counter() - started, 2)}


def _agreement(scores: Sequence[float], others: Sequence[float]) -> float:
    return sum(map(float.__eq__, scores, others)) / len(others)


if __name__ == "__main__":
    frame.run("rewards", {"math": math, "code": code, "hostile": hostile})
