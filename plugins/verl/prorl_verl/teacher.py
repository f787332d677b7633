"""Logprobs of a teacher for VeRL's on-policy distillation (arXiv 2306.13649).

VeRL starts the teachers and has the losses. Here the rows of ended rollouts are given to them, of
all segments and only those that are trained on.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

from verl.experimental.teacher_loop.teacher_manager import AsyncTeacherLLMServerManager

from prorl_verl.rows import Row


class Teacher:
    def __init__(self, config: Any, clients: Mapping[str, Any]) -> None:
        """`clients` of the teachers' engines, by the value that rows choose a teacher by."""
        self._engines = AsyncTeacherLLMServerManager(config, clients)

    @classmethod
    def of(cls, config: Any, clients: Mapping[str, Any] | None) -> Self | None:
        """Returns None where nothing is distilled, for which VeRL gives no clients."""
        return None if clients is None else cls(config, clients)

    async def taught(self, row: Row, columns: Mapping[str, Any]) -> Row:
        """Adds `teacher_ids` int32[S, K] and `teacher_logprobs` float32[S, K], in nats, S tokens of
        the whole row: at each those of the next one; K is 1, or the loss's `topk`. Raises what the
        engine raises, and `ValueError` for pictures."""
        if row.verl_fields.get("multi_modal_inputs"):
            raise ValueError("a teacher is shown no pictures")
        key = columns.get(self._engines.teacher_key)
        ids, logprobs = await self._engines.compute_teacher_logprobs_single(
            row.prompt_ids + row.response_ids, routing_key=getattr(key, "item", lambda: key)()
        )
        made = {"teacher_ids": ids, "teacher_logprobs": logprobs}
        return replace(row, verl_fields=row.verl_fields | made)
