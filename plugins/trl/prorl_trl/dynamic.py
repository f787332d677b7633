"""Dynamic sampling for TRL: the source of candidates, and the end of training.

The step's own prompts are its first candidates; others of the training set follow while too few are
informative.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any

from transformers import TrainerCallback

from prorl_service.schemas import Blame, ErrorInfo


def prompts_without_end(dataset: Any, seed: int) -> Iterator[Any]:
    """Yields a dataset's prompts without end: reshuffled if it has a length, else in its order."""
    order = random.Random(seed)
    while True:
        rows: Any = dataset
        if hasattr(dataset, "__len__"):
            rows = (dataset[i] for i in order.sample(range(len(dataset)), len(dataset)))
        for row in rows:
            yield row["prompt"]


class AtEnd(TrainerCallback):  # type: ignore[misc]
    """Callback that does `work` on the main process when training ends."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            self._work()


class AfterEvaluation(TrainerCallback):  # type: ignore[misc]
    """Does `work` on the main process whenever an evaluation is over."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            self._work()


TOO_FEW = ErrorInfo(
    kind="TooFewInformativeGroups",
    blame=Blame.TASK,
    message="fewer informative groups were found before the deadline than the step has room for",
    hint="raise `deadline_s`, or train on tasks of medium difficulty",
)
