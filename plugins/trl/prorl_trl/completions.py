"""What TRL's table of completions (`log_completions`) shows beside its own columns.

TRL decodes each completion with all of its turns. It does not know which rollout it is, or why one
failed; and it is wrong where a step trains on other prompts than its own, or where a response
template of the tokenizer's has TRL read the turns as one reply.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from prorl_trl.convert import Row


def shows_text(trainer: Any, *, has_other_prompts: bool) -> bool:
    """Returns whether TRL's own columns would be wrong, which holds for a whole training."""
    if not trainer.log_completions:
        return False
    names = ("response_template", "response_schema")
    return has_other_prompts or any(getattr(trainer._tokenizer, name, None) for name in names)


def with_text(row: Row, tokenizer: Any) -> Row:
    """Returns `row` with the text of prompt and completion, special tokens included."""
    if row.failure is not None:
        return row
    return replace(row, text=tokenizer.decode([*row.prompt_ids, *row.completion_ids]))


def columns(rows: Sequence[Row], *, text: bool) -> dict[str, list[str]]:
    columns = {"rollout": [row.label for row in rows]}
    return {**columns, "text": [row.text for row in rows]} if text else columns
