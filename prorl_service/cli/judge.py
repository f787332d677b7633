"""`prorl judge`: the agreement of judges with labels, before answers are rewarded by them."""

import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError, ValidationInfo, field_validator

from prorl_service.cli.check import read_rows
from prorl_service.cli.lists import table_of
from prorl_service.cli.screen import Screen
from prorl_service.cli.wording import plural
from prorl_service.errors import EvaluatorError, InvalidRequest, problems_of
from prorl_service.rewards.judge.agreement import Agreement, GradedAnswer, agreement_of
from prorl_service.rewards.judge.judge import Judge, JudgeConfig
from prorl_service.rewards.judge.rubric import Met, Rubric, scores_of
from prorl_service.server.settings import JudgeOptions, panel
from prorl_service.utils.visible import visible_line

ALL = "all, averaged"
"""Name of several judges together."""
MOST_PROBLEMS = 5


class LabelledAnswer(BaseModel):
    """A row. Other fields are ignored."""

    question: str
    answer: str = Field(min_length=1)
    rubric: Rubric
    labels: list[bool]
    reference: str = ""

    @field_validator("labels")
    @classmethod
    def _each_has_one(cls, labels: list[bool], row: ValidationInfo) -> list[bool]:
        criteria = row.data.get("rubric", labels)  # absent if it is bad itself
        if len(labels) != len(criteria):
            raise ValueError(f"{len(labels)} for {len(criteria)} criteria")
        return labels


@dataclass(frozen=True, slots=True)
class Judged:
    """What the judges said of an answer; nothing if one of them failed."""

    row: LabelledAnswer
    verdicts: dict[str, Met]
    problem: str = ""

    def by(self, verdicts: Sequence[Met]) -> GradedAnswer:
        return GradedAnswer(self.row.rubric, self.row.labels, scores_of(verdicts))


def judge(
    rows: Path,
    /,
    *,
    json: bool = False,
    judge: Annotated[JudgeOptions, panel("Judge")] = JudgeOptions(),
) -> int:
    """Measure how judges agree with labels: grade answers by rubrics, as the agent `rubric` does.

    A row has `question`, `answer`, `rubric`, `labels` (true or false for each criterion), and
    perhaps a `reference`. Exits with code 1 if a judge failed; such answers count nowhere.

    Parameters
    ----------
    rows
        Labelled answers in JSONL, JSON or Parquet.
    json
        Print JSON in the place of a table.
    """
    config, answers = judge.config(), list(_read(rows))
    if config is None:
        raise InvalidRequest(
            "name a judge", hint="--judge-url http://host:port/v1 --judge-model NAME"
        )
    if not answers:
        raise InvalidRequest(f"{rows} has no rows")
    judged, calls, remembered = asyncio.run(_judged(config, answers))
    figures = dict(_figures([one for one in judged if one.verdicts], config.models))
    failed = [(number, one.problem) for number, one in enumerate(judged, 1) if one.problem]
    if json:
        counts = {"answers": len(answers), "failed": len(failed)}
        _print_json({**counts, "calls": calls, "remembered": remembered}, figures)
    else:
        if figures:
            _print_table(figures)
        print(f"{plural(len(answers), 'answer')}, {plural(calls, 'call')}, {remembered} remembered")
    for number, problem in failed[:MOST_PROBLEMS]:
        print(f"prorl: row {number}: {visible_line(problem, limit=1000)}", file=sys.stderr)
    if failed:
        print(f"prorl: {plural(len(failed), 'answer')} could not be judged", file=sys.stderr)
    return 1 if failed else 0


def _read(file: Path) -> Iterator[LabelledAnswer]:
    """Raises `ProRLError`."""
    for where, row in read_rows(file):
        if row.problem:
            raise InvalidRequest(f"{file}, {where}: {row.problem}")
        try:
            yield LabelledAnswer.model_validate(row.value)
        except ValidationError as error:
            raise InvalidRequest(f"{file}, {where}: {problems_of(error)}") from None


async def _judged(
    config: JudgeConfig, answers: Sequence[LabelledAnswer]
) -> tuple[list[Judged], int, int]:
    """Returns what the judges said, and the numbers of calls and of remembered verdicts."""
    at_once = asyncio.Semaphore(config.max_calls)  # so that a budget of time is no wait for others

    async def one(judge: Judge, row: LabelledAnswer) -> Judged:
        try:
            async with at_once:
                return Judged(
                    row,
                    await judge.grade(
                        row.rubric,
                        question=row.question,
                        answer=row.answer,
                        reference=row.reference,
                    ),
                )
        except EvaluatorError as error:
            return Judged(row, {}, error.message)

    async with Judge(config) as judge:
        judged = await asyncio.gather(*(one(judge, row) for row in answers))
        return judged, judge.endpoint.calls, judge.remembered


def _figures(judged: Sequence[Judged], models: Sequence[str]) -> Iterator[tuple[str, Agreement]]:
    if not judged:
        return
    for model in models:
        yield model, agreement_of([one.by([one.verdicts[model]]) for one in judged])
    if len(models) > 1:
        yield ALL, agreement_of([one.by(list(one.verdicts.values())) for one in judged])


def _print_json(counts: dict[str, int], figures: dict[str, Agreement]) -> None:
    found = {name: asdict(one) for name, one in figures.items()}
    print(json.dumps({**counts, "judges": found}, indent=2))


def _print_table(figures: dict[str, Agreement]) -> None:
    table = table_of("judge", "*verdicts", "*accuracy", "*kappa", "*reward off by")
    for name, one in figures.items():
        kappa = "-" if one.kappa is None else f"{one.kappa:.3f}"
        cells = (str(one.verdicts), f"{one.accuracy:.3f}", kappa, f"{one.reward_difference:.3f}")
        table.add_row(visible_line(name, limit=60), *cells)
    Screen(sys.stdout).table(table)
