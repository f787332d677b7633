"""An agent whose runs can be told apart: each has a random reward, which its report repeats, and is
noted in a file when it begins and when it has sampled."""

import asyncio
import random
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel

from prorl_service.agents.base import RolloutContext, Verdict
from prorl_service.schemas import FinishReason, Group, Message, Rollout, Task
from tests.agents.bare_agent import BareAgent

ONE_RUN = "tests.front.one_run_agent:OneRun"


class OneRunData(BaseModel):
    file: str
    sleep: list[float]
    """Seconds that each rollout waits before its only model call."""


class OneRun(BareAgent):
    name: ClassVar[str] = "one_run"

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._data = OneRunData.model_validate(task.data)
        self._run = uuid.uuid4().hex

    async def run(self, rollout: RolloutContext) -> FinishReason:
        self._note("begun", rollout)
        await asyncio.sleep(self._data.sleep[int(rollout.rollout_id.rpartition(".")[2])])
        await rollout.sample(rollout.prompt_ids)
        self._note("sampled", rollout)
        return FinishReason.FINISHED

    async def eval(self, rollout: RolloutContext) -> Verdict:
        reward = random.random()
        return Verdict(reward, report={"run": self._run, "reward": reward})

    def _note(self, what: str, rollout: RolloutContext) -> None:
        with Path(self._data.file).open("a") as file:
            file.write(f"{what} {rollout.rollout_id} {self._run}\n")


class Runs:
    """What the file says of all runs so far."""

    def __init__(self, file: Path) -> None:
        self._file = file
        file.touch()

    def of(self, rollout_id: str, what: str = "begun") -> list[str]:
        """Returns the runs of a rollout that have begun, or have sampled."""
        lines = [line.split() for line in self._file.read_text().splitlines()]
        return [run for noted, one, run in lines if (noted, one) == (what, rollout_id)]

    def group(self, group_id: str, sleep: Sequence[float]) -> Group:
        data = {"file": str(self._file), "sleep": list(sleep)}
        message = Message(role="user", content="Go on.")
        task = Task(task_id="t", agent=OneRun.name, messages=[message], data=data)
        return Group(group_id=group_id, task=task, n=len(sleep))

    def assert_one_run(self, rollout: Rollout) -> None:
        """Summary, trajectory and report of a rollout that is done are those of one run."""
        assert rollout.state == "done", rollout.error
        assert rollout.trajectory is not None
        assert rollout.report is not None
        assert rollout.report["reward"] == rollout.reward
        assert rollout.report["run"] in self.of(rollout.rollout_id, "sampled")
