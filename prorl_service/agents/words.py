"""What a reply says in all, for graders: its text, and the texts in what it wrote as data. Pure."""

import json
from collections.abc import Iterator
from typing import cast

from pydantic import JsonValue

from prorl_service.tokens.formats import Reply


def words_of(reply: Reply) -> str:
    """Returns the text of a reply, then each text in it if it is a JSON object, and in its
    calls."""
    data = [_object_in(reply.content), *(call.arguments for call in reply.calls)]
    return "\n".join([reply.content, *_texts_in(data)])


def _object_in(text: str) -> JsonValue:
    """Returns the JSON object that is the whole text; None if it is something else."""
    try:
        found = json.loads(text) if text.lstrip().startswith("{") else None
    except (ValueError, RecursionError):
        return None
    return cast("JsonValue", found)


def _texts_in(value: JsonValue) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list():
            for one in value:
                yield from _texts_in(one)
        case dict():
            yield from _texts_in(list(value.values()))
