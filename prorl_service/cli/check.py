"""`prorl check`: tasks of a data set, before they are trained on.

Offline, an engine that plays scripts stands for the model: known solutions and empty attempts are
run. With `--url`, a service checks the tasks, and nothing is run. Files hold a task a line (JSONL),
a JSON list of tasks, or the rows of trainers (`prompt` and `prorl`), in these or in Parquet.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from cyclopts.types import PositiveInt
from pydantic import ValidationError

from prorl_service.agents.description import describe
from prorl_service.agents.registry import AgentRegistry, registry_with
from prorl_service.cli import try_log
from prorl_service.cli.service import connected
from prorl_service.cli.try_options import OutputOptions, TrialOptions
from prorl_service.client.datasets import (
    BadRow,
    NotATask,
    bad_rows,
    hints,
    summary,
    task_from,
    valid_task,
)
from prorl_service.errors import InvalidRequest, ProRLError, problems_of
from prorl_service.rollouts.containment import contained, make_handler
from prorl_service.schemas import (
    Blame,
    FieldProblem,
    Group,
    Limits,
    Message,
    Rollout,
    Sampling,
    Task,
    TaskProblem,
)
from prorl_service.server.service import Service
from prorl_service.server.settings import ServiceSettings, panel
from prorl_service.testing.scripted_engine import CONTEXT_TOKENS, ScriptedEngine, scripted_engine
from prorl_service.testing.trial import rollouts, trial_service
from prorl_service.tokens.model_files import context_tokens
from prorl_service.utils.runs import new_run
from prorl_service.utils.visible import visible_line

SOLVED = 1.0
"""Reward that a solution must get, and an empty attempt must not."""
LINE_CHARS = 1000

Rows = Sequence[tuple[str, "GivenRow"]]


def check(
    tasks: Path | None = None,
    /,
    *,
    agent: str | None = None,
    model: str | None = None,
    url: str | None = None,
    schema: bool = False,
    rows_only: bool = False,
    solved: Annotated[Path | None, Parameter(name="--json")] = None,
    parallel: Annotated[PositiveInt, Parameter(name=("--parallel", "-j"))] = 2,
    limits: Annotated[Limits, panel("Limits")] = Limits(),
    trial: Annotated[TrialOptions, Parameter(name="*")] = TrialOptions(),
) -> int:
    """Check a data set's tasks before training: their data, prompts, solutions.

    Known solutions must get reward 1, and empty attempts less. Exits with code 1 if a row is bad.

    Parameters
    ----------
    tasks
        Tasks in JSONL, JSON or Parquet, or Harbor's task directories.
    agent
        The agent: my_agent.py:MyAgent, package.module:MyAgent, or the name of one such as math
        (default: each task's own).
    model
        Directory or hub name of the model, for tokens and the length of prompts (default: bytes,
        no limit).
    url
        Service that checks the tasks instead; it runs no solutions.
    schema
        Print the schema of the agent's task data.
    rows_only
        Run no solutions.
    solved
        File for the rollouts of good solutions, in the tokens of --model: see `prorl warm-start`.
    parallel
        Rollouts at a time.
    """
    registry, name = (AgentRegistry(), None) if agent is None else registry_with(agent)
    if schema:
        print(json.dumps(_schema(registry, name), indent=2))
        return 0
    if tasks is None:
        raise InvalidRequest("name a file with tasks", hint="prorl check tasks.jsonl --agent math")
    if solved is not None and (rows_only or url is not None):
        raise InvalidRequest("--json saves solutions, and none is run", hint="leave one option out")
    output = OutputOptions(json=solved)
    output.check()
    rows = list(read_rows(tasks))
    if url is not None:
        with connected(url) as client:
            return _told(rows, list(_bad(rows, name, client.check_tasks)), 0)
    settings = trial.settings()
    settings = replace(settings, sandboxes=replace(settings.sandboxes, warm_sandboxes=0))
    try_log.configure(verbose=False)
    work = _offline(
        rows, name, registry, model, settings, limits, parallel=parallel, rows_only=rows_only
    )
    bad, ended = asyncio.run(work)
    output.save(ended)
    return _told(rows, bad, len(ended))


def _schema(registry: AgentRegistry, name: str | None) -> dict[str, Any]:
    """Raises `InvalidRequest`."""
    if name is None:
        raise InvalidRequest("--schema needs --agent", hint=f"{', '.join(registry.names)}")
    found = describe(registry[name]).data_schema
    if found is None:
        raise InvalidRequest(
            f"the agent {name!r} declares no schema", hint="set `data_model` in its class"
        )
    return found


def _bad(
    rows: Rows, agent: str | None, ask: Callable[[Sequence[Mapping[str, Any]]], list[TaskProblem]]
) -> list[BadRow]:
    places: dict[str, str] = {}

    def task_of(given: tuple[str, GivenRow]) -> Task:
        where, row = given
        task = row.task(agent)
        if (first := places.setdefault(task.task_id, where)) != where:
            problem = FieldProblem(field="task_id", message=f"{first} has it too")
            raise NotATask(task.task_id, [problem])
        return task

    return list(bad_rows(((where, (where, row)) for where, row in rows), task_of, ask))


async def _offline(
    rows: Rows,
    agent: str | None,
    registry: AgentRegistry,
    model: str | None,
    settings: ServiceSettings,
    limits: Limits,
    *,
    parallel: int,
    rows_only: bool,
) -> tuple[list[BadRow], list[Rollout]]:
    """Returns the bad rows, and the rollouts of good solutions. Raises `ProRLError`."""
    context = CONTEXT_TOKENS if model is None else context_tokens(model) or CONTEXT_TOKENS
    async with (
        scripted_engine([[""]], tokenizer=model, context_tokens=context) as engine,
        trial_service(registry, [engine.spec], settings, parallel=parallel) as service,
    ):
        ask = partial(service.executor.validator.problems, sampling=Sampling())
        bad = await asyncio.to_thread(_bad, rows, agent, ask)
        known = {one.where for one in bad}
        good = [(where, row) for where, row in rows if where not in known]
        trials = _Trials(service, engine, limits, asyncio.Semaphore(parallel))
        found = await asyncio.gather(
            *(trials.of(where, row.task(agent)) for where, row in good if not rows_only)
        )
    bad += [one for _, some in found for one in some]
    places = {where: place for place, (where, _) in enumerate(rows)}
    bad.sort(key=lambda one: places[one.where])
    return bad, [rollout for rollout, some in found if rollout is not None and not some]


def _told(rows: Rows, bad: Sequence[BadRow], solved: int) -> int:
    if not bad:
        run = f"; {solved} with a solution that gets the full reward" if solved else ""
        print(f"{len(rows)} tasks can run{run}")
        return 0
    for number, line in enumerate(summary(bad)):
        print(("  " if number else "") + visible_line(line, limit=LINE_CHARS))
    if hint := hints(bad):
        print(visible_line(hint, limit=LINE_CHARS))
    return 1


class _Trials:
    """Rollouts of tasks whose solution is known, and of empty attempts at them."""

    def __init__(
        self, service: Service, engine: ScriptedEngine, limits: Limits, slots: asyncio.Semaphore
    ) -> None:
        self._service = service
        self._engine = engine
        self._limits = limits
        self._slots = slots

    async def of(self, where: str, task: Task) -> tuple[Rollout | None, list[BadRow]]:
        """Returns the rollout of the task's solution, if it has one, and what is wrong with it."""
        try:
            solution = self._solution(task)
            if not solution:
                return None, []
            group = Group(group_id=f"check-{new_run()}", task=task, n=2, limits=self._limits)
            self._engine.give(group.group_id, [list(solution), [""]])
        except (ValueError, ProRLError) as error:
            said = problems_of(error) if isinstance(error, ValidationError) else str(error)
            return None, [BadRow(where, said, task.task_id, "solution")]
        async with self._slots:
            await self._service.submit([group])
            ended = [one async for one in rollouts(self._service, group)]
        solved, empty = sorted(ended, key=lambda one: one.index)
        problems = [_problem_of_solution(solved), _problem_of_empty(empty)]
        return solved, [BadRow(where, one, task.task_id) for one in problems if one]

    def _solution(self, task: Task) -> Sequence[str | Message]:
        """Raises `ProRLError` and `ValueError`."""
        handler = make_handler(self._service.executor.agents, task.model_copy(deep=True))
        with contained(f"{type(handler).__name__}.solved_by"):
            return handler.solved_by(task.solution)


def _problem_of_solution(rollout: Rollout) -> str:
    if rollout.error is not None:
        return f"the solution fails: {rollout.error.message}"
    assert rollout.reward is not None
    is_solved = rollout.reward >= SOLVED
    return "" if is_solved else f"the solution gets {rollout.reward:g}, not {SOLVED:g}"


def _problem_of_empty(rollout: Rollout) -> str:
    """An agent may ask for more replies than there are, which is no fault of the task."""
    error = rollout.error
    if error is not None:
        is_asking = error.blame is Blame.BACKEND
        return "" if is_asking else f"an empty attempt fails: {error.message}"
    assert rollout.reward is not None
    return f"an empty attempt gets {rollout.reward:g}" if rollout.reward >= SOLVED else ""


# --- rows of files ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GivenRow:
    """A row as read: a JSON object, or why it is none."""

    value: Any
    problem: str = ""

    def task(self, agent: str | None) -> Task:
        """Returns the task, for `agent` if there is one and the row names none. Raises
        `ValueError`, also if it names another."""
        if self.problem:
            raise ValueError(self.problem)
        if not isinstance(self.value, Mapping):
            raise ValueError("it is not an object")
        row = dict(self.value)
        solution = row.pop("solution", None)
        if "prompt" in row:
            task = _of_trainer(row, agent)
        else:
            fields = row["task"] if isinstance(row.get("task"), Mapping) else row
            task = valid_task(
                {**fields, "agent": fields.get("agent") or agent} if agent else fields
            )
        if agent is not None and task.agent != agent:
            problem = FieldProblem(field="agent", message=f"{task.agent!r}; --agent is {agent!r}")
            raise NotATask(task.task_id, [problem])
        if solution is not None:
            task.solution = solution
        return task


def _of_trainer(row: Mapping[str, Any], agent: str | None) -> Task:
    if not isinstance(row["prompt"], list) or not row["prompt"]:
        raise ValueError("prompt: it must be a list of messages")
    messages = [{k: v for k, v in one.items() if k != "prorl"} for one in row["prompt"]]
    truth = (row.get("reward_model") or {}).get("ground_truth")
    return task_from(
        messages,
        row.get("prorl") or row["prompt"][-1].get("prorl"),
        default_agent=agent,
        no_agent_hint="name one with --agent",
        data=None if truth is None else {"answer": str(truth)},
    )


def read_rows(source: Path) -> Iterator[tuple[str, GivenRow]]:
    """Yields each row and its place, such as "line 4". Raises `ProRLError`."""
    try:
        if source.is_dir():
            yield from _of_harbor(source)
        elif source.suffix == ".parquet":
            yield from _of_parquet(source)
        elif source.suffix == ".json":
            yield from _of_json(source)
        else:
            yield from _of_lines(source)
    except OSError as error:
        raise ProRLError(f"{source}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ProRLError(f"{source}: {error}") from None


def _of_lines(source: Path) -> Iterator[tuple[str, GivenRow]]:
    with source.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield f"line {number}", _parsed(line)


def _parsed(text: str) -> GivenRow:
    try:
        return GivenRow(json.loads(text))
    except (ValueError, RecursionError) as error:
        return GivenRow(None, f"it is not JSON: {error}")


def _of_json(source: Path) -> Iterator[tuple[str, GivenRow]]:
    row = _parsed(source.read_text(encoding="utf-8"))
    if row.problem:
        raise InvalidRequest(f"{source}: {row.problem}", hint="a task a line: name it .jsonl")
    rows = row.value if isinstance(row.value, list) else [row.value]
    for number, value in enumerate(rows, 1):
        yield f"row {number}", GivenRow(value)


def _of_parquet(source: Path) -> Iterator[tuple[str, GivenRow]]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise ProRLError(f"{source}: Parquet needs pyarrow: `pip install pyarrow`") from None
    number = 0
    try:
        with pq.ParquetFile(source) as file:
            for batch in file.iter_batches(batch_size=256):
                for value in batch.to_pylist():
                    number += 1
                    yield f"row {number}", GivenRow(value)
    except pa.ArrowException as error:
        raise ProRLError(f"{source}: {error}") from None


def _of_harbor(source: Path) -> Iterator[tuple[str, GivenRow]]:
    from prorl_service.cli.harbor_reading import read_all

    found, _ = read_all([source], strict=True)
    for one in found:
        yield str(one.directory.path), GivenRow(one.task.model_dump(mode="json"))
