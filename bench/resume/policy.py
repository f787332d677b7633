"""Policies that know what to do next from the prompt alone, and an engine that counts what it
sampled more than once.

Three kinds of rollout: `files` counts lines of a file with bash, `kernel` counts in a variable of
IPython, which a restart loses, and `swe` makes the edits of a reference patch.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import JsonValue

from prorl_service.schemas import Group, Limits, Message, Rollout, Task
from prorl_service.testing import StubEngine, byte_model, call
from prorl_service.testing.replies import Reply, token_ids
from prorl_service.tokens.chat import ChatFormat
from recipes.common.training.imitation import tool_call
from recipes.swebench import oracle_policy
from recipes.swebench.rows import SweInstance

TURNS = 10
RUN_TIMEOUT_S = 3600.0
ANSWERED = "<tool_response>"
LOST = "lost"
COUNT_LINES = "echo {number} >> log; wc -l < log"
COUNT_IN_KERNEL = f"""\
try:
    n += 1
except NameError:
    n = 1 if {{number}} == 0 else "{LOST}"
print(n)
n = {{number}} + 1"""


@dataclass(slots=True)
class Epoch:
    """Calls from one process of the service, as the engine saw them."""

    began_at: float
    had: int
    """Turns sampled before, by all processes."""
    repeated: int = 0
    """Turns sampled that an earlier process had sampled."""
    first_calls: dict[str, float] = field(default_factory=dict)
    """Seconds from the start to the first call of each rollout that had turns, by id."""


class CountingEngine(StubEngine):
    def __init__(self, model: Path, latency_s: float, instances: Sequence[SweInstance]) -> None:
        super().__init__(model, lambda _: (), latency_s=latency_s, max_model_len=1 << 20)
        self._chat = ChatFormat.load(str(model), None)
        self._scripts = {one.instance_id: _script(one) for one in instances}
        self._seen: dict[str, set[int]] = {}
        """Numbers of the turns that were sampled, by rollout."""
        self.prompts: dict[str, list[tuple[list[int], list[int]]]] = {}
        """Prompts and what was sampled, by rollout, in order."""
        self.epochs: list[Epoch] = []

    def begin_epoch(self) -> None:
        """Call this when a process of the service is started."""
        self.epochs.append(Epoch(time.monotonic(), sum(map(len, self._seen.values()))))

    def answer(self, prompt: list[int], session_id: str) -> tuple[list[int], bool]:
        number = self._chat.decode(prompt, stopped=False).count(ANSWERED)
        ids, ends = token_ids(self._reply(session_id, number), self._chat)
        seen, epoch = self._seen.setdefault(session_id, set()), self.epochs[-1]
        epoch.repeated += number in seen
        if seen:
            epoch.first_calls.setdefault(session_id, time.monotonic() - epoch.began_at)
        seen.add(number)
        self.prompts.setdefault(session_id, []).append((prompt, ids))
        return ids, ends

    def _reply(self, rollout_id: str, number: int) -> Reply:
        kind, _, name = rollout_id.rpartition(".")[0].partition("-")
        if kind == "swe":
            script = self._scripts[name.rpartition("-")[0]]
            return script[min(number, len(script) - 1)]
        if number == TURNS - 1:
            return str(number)
        if kind == "files":
            return call("bash", command=COUNT_LINES.format(number=number))
        return call("ipython", code=COUNT_IN_KERNEL.format(number=number))


def _script(instance: SweInstance) -> list[str]:
    """Returns `TURNS` turns, each with one call."""
    look, *steps = oracle_policy.steps(instance)
    looks = [look] * (TURNS - len(steps))
    return [tool_call(name, arguments) for name, arguments in [*looks, *steps]]


@contextmanager
def counting(
    directory: Path, latency_s: float, instances: Sequence[SweInstance]
) -> Iterator[CountingEngine]:
    """Runs the engine on a new tokenizer."""
    directory.mkdir(parents=True)
    byte_model.write(directory)
    with CountingEngine(directory, latency_s, instances).in_thread() as engine:
        yield engine


def group(kind: str, name: str, n: int, instance: SweInstance | None = None) -> Group:
    limits = Limits(max_turns=TURNS, run_timeout_s=RUN_TIMEOUT_S)
    if instance is not None:
        group_id = f"swe-{instance.instance_id}-{name}"
        return Group(group_id=group_id, task=instance.task(), n=n, limits=limits)
    data: dict[str, JsonValue] = {"answer": str(TURNS - 1), "answer_format": "plain"}
    if kind == "kernel":
        data["tools"] = ["ipython"]
    messages = [Message(role="user", content="Count.")]
    task = Task(task_id=kind, agent="math", messages=messages, data=data)
    return Group(group_id=f"{kind}-{name}", task=task, n=n, limits=limits)


def outputs(rollout: Rollout) -> list[str]:
    assert rollout.trajectory is not None
    return [one.output for turn in rollout.trajectory.turns for one in turn.tool_calls]
