"""One self-contained HTML page to read rollouts turn by turn and token by token.

Takes any recipe's rollouts. Text of models and tools is hostile: it travels as JSON, in which no
markup survives, and becomes text nodes only; the page's policy allows only the page's own script
and style, and no network. The page grows with the tokens shown; choose some hundred rollouts.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prorl_service.schemas import Rollout, Segment, Task

_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Entry:
    """A rollout to show. `label` and `step` say where in the run it belongs."""

    rollout: Rollout
    task: Task
    label: str = ""
    step: int | None = None


def write_page(
    path: Path, entries: Sequence[Entry], *, title: str, token_text: Callable[[int], str]
) -> None:
    """Writes the page. `token_text` gives the text of one id; '' for an id without text."""
    style, script = _source("viewer.css"), _source("viewer.js")
    parts = {
        "title": html.escape(title),
        "policy": f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}",
        "style": style,
        "script": script,
        "data": _json(_page_data(entries, token_text)),
    }
    # One pass, so that inserted text is not searched for placeholders.
    page = re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _source("viewer.html"))
    path.write_text(page, encoding="utf-8")


def _source(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _json(value: Any) -> str:
    """Returns JSON in ASCII, without the characters that could end a script element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _page_data(entries: Sequence[Entry], token_text: Callable[[int], str]) -> dict[str, Any]:
    segments = [segment for entry in entries for segment in _segments(entry.rollout)]
    ids = {id_ for segment in segments for id_ in (*segment.prompt_ids, *segment.response_ids)}
    return {
        "entries": [_entry(entry) for entry in entries],
        "vocabulary": {id_: token_text(id_) for id_ in sorted(ids)},
    }


def _entry(entry: Entry) -> dict[str, Any]:
    shown = entry.rollout.model_dump(mode="json", exclude={"trajectory"})
    trajectory = entry.rollout.trajectory
    return shown | {
        "label": entry.label,
        "step": entry.step,
        "messages": [message.model_dump() for message in entry.task.messages],
        "data": entry.task.data,
        "finish_reason": trajectory and trajectory.finish_reason.value,
        "turns": [turn.model_dump(mode="json") for turn in trajectory.turns] if trajectory else [],
        "segments": [_rounded(segment) for segment in _segments(entry.rollout)],
    }


def _segments(rollout: Rollout) -> Iterable[Segment]:
    return rollout.trajectory.segments if rollout.trajectory else ()


def _rounded(segment: Segment) -> dict[str, Any]:
    return segment.model_dump() | {"logprobs": [round(value, 4) for value in segment.logprobs]}
