"""`ProRLSpec`: tasks and rollouts in one object, in the style of TRL's own specs.

Each attribute is the trainer's argument of that name.
"""

from collections.abc import Callable, Sequence
from typing import Any

from datasets import Dataset

from prorl_service.schemas import Task
from prorl_trl.convert import with_task
from prorl_trl.rollout import ProRLRollout


class ProRLSpec:
    """`GRPOTrainer(model=..., args=..., train_dataset=spec.train_dataset,
    rollout_func=spec.rollout_func, reward_funcs=spec.reward_funcs)`.

    `options` are those of `ProRLRollout`. Raises `ValueError` for tasks that cannot be given to the
    service.
    """

    def __init__(
        self, url: str, tasks: Sequence[Task], eval_tasks: Sequence[Task] = (), **options: Any
    ) -> None:
        self.train_dataset = _dataset(tasks)
        self.eval_dataset = _dataset(eval_tasks) if eval_tasks else None
        self.rollout_func = ProRLRollout(url, **options)

    @property
    def reward_funcs(self) -> list[Callable[..., list[float | None]]]:
        return self.rollout_func.reward_funcs


def _dataset(tasks: Sequence[Task]) -> Dataset:
    return Dataset.from_list([{"prompt": _prompt(task)} for task in tasks])


def _prompt(task: Task) -> list[dict[str, Any]]:
    return with_task(
        [message.model_dump() for message in task.messages],
        task_id=task.task_id,
        agent=task.agent,
        data=task.data,
        image=task.image,
        difficulty=task.difficulty,
    )
