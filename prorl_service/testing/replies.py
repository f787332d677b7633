"""Scripted replies of a model: text, messages, or the replies of saved rollouts.

Knows nothing about engines or rollouts in flight.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import JsonValue, ValidationError

from prorl_service.errors import InvalidRequest, problems_of
from prorl_service.schemas import Message, Rollout
from prorl_service.tokens.chat import ChatFormat

SEPARATOR = "---"
"""Line between replies in a text file."""


@dataclass(frozen=True, slots=True)
class CutReply:
    """Text of a reply that stopped at the token limit, so that its turn did not end."""

    text: str


Reply = str | Message | CutReply
"""One reply: the text that the model samples, or the assistant's message that it writes."""


def call(name: str, /, **arguments: JsonValue) -> Message:
    """Returns a reply that calls one tool, in the model's own format."""
    return Message.calling(name, **arguments)


def token_ids(reply: Reply, chat: ChatFormat) -> tuple[list[int], bool]:
    """Returns the ids that an engine would have sampled, and whether they end the turn. Raises
    `InvalidRequest` for a message that the model's template cannot write."""
    if isinstance(reply, CutReply):
        return chat.encode(reply.text), False
    return chat.reply_ids(reply), True


def read(file: Path) -> list[list[Reply]]:
    """Reads the scripts in a file, one for each attempt. Raises `InvalidRequest`.

    A `.jsonl` file has a reply on each line, as text or as a message, or a saved rollout on each
    line, whose replies are replayed. Other files have the texts of replies, separated by lines of
    `---`.
    """
    try:
        text = file.read_text()
    except OSError as error:
        raise InvalidRequest(f"replies in {file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"replies in {file}: {error}") from None
    is_json = file.suffix == ".jsonl"
    scripts: list[list[Reply]] = _of_lines(text, file) if is_json else [[*_blocks(text)]]
    if not any(scripts):
        raise InvalidRequest(f"{file} holds no replies")
    return scripts


def _blocks(text: str) -> Iterator[str]:
    blocks: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.rstrip() == SEPARATOR:
            blocks.append([])
        else:
            blocks[-1].append(line)
    if not any(blocks[-1]):  # a separator may also follow the last reply
        del blocks[-1]
    return ("\n".join(lines).strip("\n") for lines in blocks)


def _of_lines(text: str, file: Path) -> list[list[Reply]]:
    replies: list[Reply] = []
    scripts: list[list[Reply]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            found = _of_json(json.loads(line))
        except ValidationError as error:
            raise InvalidRequest(f"{file}, line {number}: {problems_of(error)}") from None
        except ValueError as error:
            raise InvalidRequest(f"{file}, line {number}: {error}") from None
        if isinstance(found, list):
            scripts.append(found)
        else:
            replies.append(found)
    if replies and scripts:
        raise InvalidRequest(f"{file} holds replies as well as rollouts", hint="make two files")
    return scripts or [replies]


def _of_json(value: Any) -> Reply | list[Reply]:
    """Raises `ValueError`."""
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        raise ValueError("a reply is text, or an object: a message or a rollout")
    if "rollout_id" in value:
        return _of_rollout(Rollout.model_validate(value))
    return Message.written(value)


def _of_rollout(rollout: Rollout) -> list[Reply]:
    if rollout.trajectory is None:
        raise ValueError(f"rollout {rollout.rollout_id} has no trajectory")
    return [
        CutReply(turn.text) if turn.finish_reason == "length" else turn.text
        for turn in rollout.trajectory.turns
    ]
