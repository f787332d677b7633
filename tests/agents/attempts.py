"""An attempt whose engine plays scripted replies, without a service around it."""

from typing import Any

from prorl_service.attempt import Attempt
from prorl_service.inference.base import Generator
from prorl_service.rewards.pool import ScoringPool
from prorl_service.sandbox.base import SandboxProvider, ToolResult
from prorl_service.schemas import Limits, Message, Sampling, Task
from prorl_service.testing import FakeSandboxes
from prorl_service.tokens.chat import ChatFormat

TASK = Task(task_id="t", agent="math", messages=[Message(role="user", content="Go.")])


def attempt_of(
    chat: ChatFormat,
    generator: Generator,
    sandboxes: SandboxProvider | None = None,
    *,
    task: Task = TASK,
    max_model_len: int = 4096,
    limits: Limits = Limits(),
    **others: Any,
) -> Attempt:
    """`others`: further fields of the attempt."""
    fields = {
        "sampling": Sampling(),
        "prompt_ids": chat.prompt_ids(task.messages),
        "scoring": ScoringPool(),
        **others,
    }
    return Attempt(
        rollout_id="g.0",
        task=task,
        limits=limits,
        seed=None,
        max_model_len=max_model_len,
        chat=chat,
        generator=generator,
        sandboxes=sandboxes or FakeSandboxes(lambda name, arguments: ToolResult("")),
        **fields,
    )
