"""Rollouts of a training run in the directory `prorl.save`: a file for each step.

A step's file appears once none of its rollouts is outstanding. Files are written in order, in a
separate thread; training continues if the disk fails.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from prorl_service.client.saved import SavedStep, StepFiles
from prorl_service.schemas import Rollout
from prorl_verl.checks import BadConfiguration
from prorl_verl.store import Prompt

logger = logging.getLogger(__name__)


def step_of(prompt: Prompt) -> SavedStep:
    """Returns the step in which `prompt` was issued."""
    return SavedStep(prompt.global_steps, is_evaluation=prompt.partition == "val")


class Saving:
    """Writer of a run's rollouts. All but `close` belongs to one event loop."""

    def __init__(self, directory: Path) -> None:
        """Raises `BadConfiguration` for a directory that cannot be written."""
        try:
            self._files = StepFiles(directory)
        except OSError as error:
            raise BadConfiguration(
                f"prorl.save={directory}: {error.strerror}", hint="name a directory to write to"
            ) from error
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prorl-save")
        self._open: Counter[SavedStep] = Counter()

    async def during(self, prompts: Sequence[Prompt], work: Awaitable[None]) -> None:
        """Awaits `work`, which adds rollouts of `prompts`, then finishes their steps unless other
        work on them is running."""
        steps = {step_of(prompt) for prompt in prompts}
        self._open.update(steps)
        await self.add_tasks(prompts)
        try:
            await work
        finally:
            self._open.subtract(steps)
            for step in steps:
                if not self._open[step]:
                    await self.finish(step)

    async def add_tasks(self, prompts: Iterable[Prompt]) -> None:
        tasks = [prompt.group.task for prompt in prompts]
        await self._do(lambda: self._files.add_tasks(tasks))

    async def add(self, step: SavedStep, rollouts: Sequence[Rollout]) -> None:
        await self._do(lambda: self._files.add(step, rollouts))

    async def finish(self, step: SavedStep) -> None:
        await self._do(lambda: self._files.finish(step))

    async def _do(self, write: Callable[[], None]) -> None:
        def attempt() -> None:
            try:
                write()
            except OSError as error:
                logger.warning("rollouts are not saved: %s", error)

        await asyncio.get_running_loop().run_in_executor(self._thread, attempt)

    def close(self) -> None:
        """Stops writing, from any thread. An incomplete step has what ended by then."""
        self._thread.shutdown()
        try:
            self._files.finish_all()
        except OSError as error:
            logger.warning("rollouts are not saved: %s", error)
