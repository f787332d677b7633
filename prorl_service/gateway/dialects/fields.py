"""Fields of requests, checked: what clients send is read leniently where that changes nothing. And
events of streams (the HTML standard, section 9.2).
"""

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import orjson

from prorl_service.gateway.calls import Refused
from prorl_service.schemas import Message, Picture
from prorl_service.schemas.groups import FunctionCall, MessageCall
from prorl_service.schemas.pictures import canonical

Body = Mapping[str, Any]

TEXT_PARTS = frozenset({"text", "input_text", "output_text", "summary_text", "reasoning_text"})
READ_PARTS = TEXT_PARTS | {"refusal", "thinking", "redacted_thinking", "tool_use", "tool_result"}
USUAL: Mapping[str, Sequence[Any]] = {
    "tool_choice": (None, "auto", "none", {"type": "auto"}, {"type": "none"}),
    "response_format": (None, {"type": "text"}),
    "text": (None, {"format": {"type": "text"}}),
    "logprobs": (None, False),
}
"""Values that fields have without asking for anything that the gateway does not do."""
PICTURE = "picture"
"""Type of a part that is a picture, in all dialects once it was read."""
PARTS = ("content", "output")
"""Fields of messages, items and parts that may hold lists of parts."""


def readable(body: Body, *, sees: bool = False) -> tuple[dict[str, Any], list[str]]:
    """Returns a request that the policy can read, and the types of the parts that it cannot: each
    is replaced by a line that names it, as text models elsewhere get it. Pictures have one form if
    the policy `sees` them. Lone surrogates, which are no text, are replaced, too."""
    left_out = list[str]()
    read = {name: _readable(value, name, left_out, sees) for name, value in body.items()}
    return read, left_out


def _readable(value: Any, name: str, left_out: list[str], sees: bool) -> Any:
    match value:
        case str():
            return encodable(value)
        case list():
            read = [_readable(one, "", left_out, sees) for one in value]
            return [_part_of(one, left_out, sees) for one in read] if name in PARTS else read
        case dict():
            return {key: _readable(one, key, left_out, sees) for key, one in value.items()}
    return value


def _part_of(part: Any, left_out: list[str], sees: bool) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str) or kind in READ_PARTS:
        return part
    why = "the model reads text only"
    if sees and (file := _picture_in(part)) is not None:
        try:
            content = canonical(base64.b64decode(file))
            return {"type": PICTURE, "data": base64.b64encode(content).decode()}
        except ValueError as error:
            why = str(error)
    left_out.append(kind)
    return {"type": "text", "text": f"[{kind}: left out, {why}]"}


def _picture_in(part: Body) -> str | None:
    """Returns the file of a part that has a picture itself, in base64."""
    match part:
        case {"type": "image", "source": {"type": "base64", "data": str(data)}}:
            return data
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            pass
        case {"type": "input_image", "image_url": str(url)}:
            pass
        case _:
            return None
    head, _, data = url.partition(";base64,")
    return data if head.startswith("data:image/") else None


def encodable(text: str) -> str:
    """Returns the text with its lone surrogates replaced."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def message(
    role: Literal["system", "user", "tool"], content: Any, where: str, call_id: str | None = None
) -> Message:
    """Makes a message of a string, or of a list of parts. Raises `Refused`."""
    text, pictures = "", []
    for one in content if isinstance(content, list) else [content]:
        match one:
            case {"type": "picture", "data": data}:
                pictures.append(Picture(at=len(text), data=data))
            case _:
                text += text_of([one] if isinstance(content, list) else one, where)
    return Message(role=role, content=text, pictures=pictures, tool_call_id=call_id)


def text_of(content: Any, where: str) -> str:
    """Returns the text of a string, or of a list of parts that are all text. Raises `Refused`."""
    match content:
        case None:
            return ""
        case str():
            return content
        case list():
            return "".join(_part(one, where) for one in content)
    raise Refused(f"{where}: expected text, or a list of parts")


def _part(part: Any, where: str) -> str:
    match part:
        case str():
            return part
        case {"type": kind, "text": str(text)} if kind in TEXT_PARTS:
            return text
        case {"type": "refusal", "refusal": str(text)}:
            return text
        case {"type": kind}:
            raise Refused(f"{where}: the policy takes text only, not {kind!r}")
    raise Refused(f"{where}: expected a part with a type and text")


def arguments_of(raw: Any) -> tuple[dict[str, Any], str]:
    """Returns the arguments of a call, and their text if they are no JSON object."""
    if isinstance(raw, dict):
        return raw, ""
    text = raw if isinstance(raw, str) else json.dumps(raw)
    try:
        value = _readable(json.loads(text), "", [], False) if text.strip() else {}
    except (ValueError, RecursionError):
        return {}, text
    return (value, "") if isinstance(value, dict) else ({}, text)


def assistant(
    text: str, reasoning: str, calls: Sequence[tuple[str, str, dict[str, Any]]]
) -> Message:
    """Makes an assistant's message. `calls`: id, name and arguments of each."""
    return Message(
        role="assistant",
        content=text,
        reasoning_content=reasoning or None,
        tool_calls=[
            MessageCall(id=call_id, function=FunctionCall(name=name, arguments=arguments))
            for call_id, name, arguments in calls
        ],
    )


def string(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise Refused(f"{where}: expected text")
    return value


def items(value: Any, where: str) -> list[dict[str, Any]]:
    """Returns a list of objects. Raises `Refused`."""
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise Refused(f"{where}: expected a list of objects")
    return value


def limit(body: Body, *names: str) -> int | None:
    """Returns the smallest limit of tokens that is given under one of the names."""
    given = [body[name] for name in names if body.get(name) is not None]
    if not all(isinstance(one, int) and one > 0 for one in given):
        raise Refused(f"{' or '.join(names)}: expected a positive number of tokens")
    return min(given, default=None)


def stop_of(value: Any, where: str) -> tuple[str, ...]:
    match value:
        case None:
            return ()
        case str():
            return (value,) if value else ()
        case list() if all(isinstance(one, str) for one in value):
            return tuple(one for one in value if one)
    raise Refused(f"{where}: expected text, or a list of texts")


def offered(body: Body) -> Any:
    """Returns the tools; none where the request wants a reply without calls."""
    choice = body.get("tool_choice")
    wants_none = choice == "none" or (isinstance(choice, dict) and choice.get("type") == "none")
    return [] if wants_none else body.get("tools") or []


def without_effect(body: Body, used: Iterable[str]) -> tuple[str, ...]:
    """Returns the names of all other fields that ask for something."""
    others = body.keys() - set(used)
    return tuple(sorted(name for name in others if body[name] not in USUAL.get(name, (None,))))


def schema(name: str, description: Any, parameters: Any) -> dict[str, Any]:
    """Makes a tool as chat templates take it."""
    function: dict[str, Any] = {"name": name}
    if isinstance(description, str):
        function["description"] = description
    function["parameters"] = parameters if isinstance(parameters, dict) else {"type": "object"}
    return {"type": "function", "function": function}


def data(value: Mapping[str, Any], event: str | None = None) -> bytes:
    """Returns an event whose data is JSON, which has no line breaks of its own."""
    name = f"event: {event}\n".encode() if event else b""
    return b"".join((name, b"data: ", orjson.dumps(value), b"\n\n"))
