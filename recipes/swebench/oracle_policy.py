"""A policy that knows the answers, through the whole service: engine, HTTP, agent, sandboxes, EVAL.

Its tool calls make the edits of the reference patch, run tests and submit. It shows that the
agent's tools suffice to resolve an instance, and that nothing is lost between them and the reward;
a tiny model begins by imitating it. Only the engine is fake: it plays scripts. Says nothing about
any model.
"""

import asyncio
import itertools
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from prorl_service import local
from prorl_service.agents.swe.agent import SweAgent
from prorl_service.cli.program import run
from prorl_service.client import AsyncRolloutClient
from prorl_service.inference.reference_engine.tiny import build_tiny_model
from prorl_service.sandbox import SandboxKind
from prorl_service.schemas import Group, Limits, Rollout
from prorl_service.testing import StubEngine
from prorl_service.tokens.chat import ChatFormat
from recipes.common.training.imitation import tool_call
from recipes.swebench.offline import build_all, default_directory
from recipes.swebench.report import write_reports
from recipes.swebench.rows import SweInstance

Step = tuple[str, dict[str, Any]]
"""Name and arguments of a tool call."""

Script = Sequence[str]

SUBMIT: Step = ("submit", {})
CONTEXT = 400_000
WORKERS = ["--init-workers", "2", "--run-workers", "2", "--eval-workers", "2"]
TIMEOUT_S = 3600.0


def bash(command: str) -> Step:
    return "bash", {"command": command}


def edits(row: SweInstance) -> list[Step]:
    """Returns the hunks of the reference patch as calls of the editor. Handles changes of text in
    existing files, which is all that the offline instances have."""
    steps: list[Step] = []
    for file in re.split(r"^diff --git .*\n", row.patch, flags=re.MULTILINE)[1:]:
        _, path = re.findall(r"^(?:---|\+\+\+) [ab]/(.*)$", file, re.MULTILINE)
        for hunk in re.split(r"^@@ .*\n", file, flags=re.MULTILINE)[1:]:
            lines = [line for line in hunk.splitlines() if line[:1] != "\\"]
            old, new = ("\n".join(line[1:] for line in lines if line[:1] != sign) for sign in "+-")
            call = {"command": "str_replace", "path": f"{row.environment.repository}/{path}"}
            steps.append(("str_replace_editor", {**call, "old_str": old, "new_str": new}))
    return steps


def steps(row: SweInstance) -> list[Step]:
    """Returns look, edits, test, submit. The tests are those that the model can see: the base's."""
    look = bash("git status --short && git log --oneline")
    test = bash(f"python -m pytest -q {' '.join(row.environment.test_files)} | tail -n 3")
    return [look, *edits(row), test, SUBMIT]


def script(steps: Sequence[Step]) -> list[str]:
    """Returns what the model says, turn by turn: one call each."""
    return [tool_call(name, arguments) for name, arguments in steps]


class Player:
    """Plays the scripts of the instance that a prompt belongs to: each rollout gets the next
    script, cyclically. At most one script of an instance has more than one turn."""

    def __init__(
        self, rows: Sequence[SweInstance], chat: ChatFormat, scripts: Mapping[str, Sequence[Script]]
    ) -> None:
        self._chat = chat
        self._first_prompts = [(_prompt_ids(row, chat), row.instance_id) for row in rows]
        self._long = {name: max(played, key=len) for name, played in scripts.items()}
        self._next = {name: itertools.cycle(played) for name, played in scripts.items()}

    def answer(self, prompt: list[int]) -> list[int]:
        """Returns the next turn. Raises `StopIteration` for a prompt of an unknown instance."""
        first, name = next(
            (first, name) for first, name in self._first_prompts if prompt[: len(first)] == first
        )
        turn = prompt[len(first) :].count(self._chat.end_of_turn_id) // 2
        text = self._long[name][turn] if turn else next(self._next[name])[0]
        return [*self._chat.encode(text), self._chat.end_of_turn_id]


def _prompt_ids(row: SweInstance, chat: ChatFormat) -> list[int]:
    prompt = SweAgent(row.task()).prompt()
    return chat.prompt_ids(prompt.messages, tools=prompt.tools)


def engine(
    rows: Sequence[SweInstance], model: Path, scripts: Mapping[str, Sequence[Script]]
) -> StubEngine:
    """Makes the engine. `scripts`: keyed by instance. `model`: for its tokenizer, whose tokens may
    be small."""
    player = Player(rows, ChatFormat.load(model), scripts)
    return StubEngine(model, player.answer, max_model_len=CONTEXT)


@contextmanager
def serving(
    rows: Sequence[SweInstance], model: Path, scripts: Mapping[str, Sequence[Script]]
) -> Iterator[StubEngine]:
    """Runs the engine on an event loop in a thread of its own."""
    with engine(rows, model, scripts).in_thread() as oracle:
        yield oracle


def group(row: SweInstance) -> Group:
    return Group(
        group_id=row.instance_id, task=row.task(), limits=Limits(max_turns=len(steps(row)))
    )


async def roll_out(
    rows: Sequence[SweInstance],
    *,
    sandbox: SandboxKind = "auto",
    progress: Callable[[Rollout], None] = lambda _: None,
) -> list[Rollout]:
    """Runs one rollout of each, in order, by a service of its own. Call it in the main thread.

    Raises `ProRLError` when the service does not start, and `ServiceCallError`.
    """
    scripts = {row.instance_id: [script(steps(row))] for row in rows}
    groups = [group(row) for row in rows]
    with tempfile.TemporaryDirectory() as directory:
        model = Path(directory, "model")
        build_tiny_model(model)  # its tokenizer
        options = ["--sandbox", sandbox, *WORKERS]
        async with engine(rows, model, scripts) as oracle:
            log = Path(directory, "service.log")
            with local.service([oracle.url], log=log, options=options) as service:
                return await _wait(service.url, groups, progress)


async def _wait(
    url: str, groups: Sequence[Group], progress: Callable[[Rollout], None]
) -> list[Rollout]:
    ids = [rollout_id for group in groups for rollout_id in group.rollout_ids()]
    ended = {}
    async with AsyncRolloutClient(url) as client:
        await client.submit(groups)
        async for rollout in client.stream(ids, timeout_s=TIMEOUT_S):
            ended[rollout.rollout_id] = rollout
            progress(rollout)
    return [ended[rollout_id] for rollout_id in ids]


def main(
    sandbox: Annotated[str, Parameter(help="See `prorl serve`.")] = "auto",
    only: Annotated[list[str] | None, Parameter(help="Ids; default: all.")] = None,
    output: Annotated[Path | None, Parameter(help="Directory for reports.")] = None,
) -> None:
    """Resolve the offline instances with a policy that knows the answers."""
    console = Console()

    def tell(rollout: Rollout) -> None:
        console.print(f"{rollout.task_id}: {rollout.state} reward {rollout.reward}")

    rows = build_all(default_directory(), only=only or (), progress=console.print)
    rollouts = asyncio.run(roll_out(rows, sandbox=sandbox, progress=tell))
    if output is not None:
        write_reports(rollouts, output)
    console.print(f"{sum(one.reward == 1.0 for one in rollouts)} of {len(rollouts)} resolved")


if __name__ == "__main__":
    run(main)
