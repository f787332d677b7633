"""Messages as chat templates take them. Pure."""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from prorl_service.schemas import Message
from prorl_service.tokens.pictures import PLACEHOLDER
from prorl_service.tokens.probe import Findings, reasoning

Turn = dict[str, Any]


def rendered(message: Message, defuse: Callable[[str], str]) -> Turn:
    """Converts a message, with `defuse` applied to all its text."""
    turn: Turn = {"role": message.role, "content": _content(message, defuse)}
    if message.reasoning_content is not None:
        turn |= reasoning(defuse(message.reasoning_content))
    if message.tool_calls:
        turn["tool_calls"] = [
            {
                "id": call.id,
                "type": call.type,
                "function": {
                    "name": defuse(call.function.name),
                    "arguments": defused(call.function.arguments, defuse),
                },
            }
            for call in message.tool_calls
        ]
    for field in ("name", "tool_call_id"):
        if (value := getattr(message, field)) is not None:
            turn[field] = defuse(value)
    return turn


def _content(message: Message, defuse: Callable[[str], str]) -> str:
    """Returns the text, with a placeholder for each picture: no other text can spell one."""
    parts, start = [], 0
    for picture in message.pictures:
        parts += [defuse(message.content[start : picture.at]), PLACEHOLDER]
        start = picture.at
    return "".join([*parts, defuse(message.content[start:])])


def fold_systems(turns: Sequence[Turn], findings: Findings) -> list[Turn]:
    """Rewrites system messages that the template drops or refuses: those at the start are joined by
    a blank line, later ones become text of the user's turn, between `<system-reminder>` tags."""
    start = next((n for n, turn in enumerate(turns) if turn["role"] != "system"), len(turns))
    leading, later = list(turns[:start]), list(turns[start:])
    if len(leading) > 1 and findings.leading_systems != "rendered":
        leading = [{**leading[0], "content": "\n\n".join(one["content"] for one in leading)}]
    if findings.late_system == "rendered" or all(turn["role"] != "system" for turn in later):
        return [*leading, *later]
    folded: list[Turn] = []
    marked = [(_as_reminder(turn), turn["role"] == "system") for turn in later]
    for role, run in groupby(marked, key=lambda one: one[0]["role"]):
        turns, are_reminders = zip(*run, strict=True)
        if role == "user" and any(are_reminders):
            turns = ({"role": role, "content": "\n\n".join(turn["content"] for turn in turns)},)
        folded += turns
    return [*leading, *folded]


def _as_reminder(turn: Turn) -> Turn:
    if turn["role"] != "system":
        return turn
    text = f"<system-reminder>\n{turn['content']}\n</system-reminder>"
    return {"role": "user", "content": text}


def defused(value: Any, defuse: Callable[[str], str]) -> Any:
    """Returns a JSON value with `defuse` applied to all its text."""
    match value:
        case str():
            return defuse(value)
        case list():
            return [defused(one, defuse) for one in value]
        case dict():
            return {_defused_key(key, defuse): defused(one, defuse) for key, one in value.items()}
    return value


def _defused_key(key: str, defuse: Callable[[str], str]) -> str:
    """Some templates write keys as tags, and `<` makes a special token of `|im_end|` and `>`."""
    return defuse(f"<{key}>")[1:-1] if "|" in key else defuse(key)
