"""Tokens for a model that takes messages: a chat template of our own, whose text says it all.

A model behind an API gives text, not ids. Its conversations are kept as tokens all the same, so
that limits, the page and exports work; the engine reads the messages back from them, exactly. No
trainer may learn from these tokens: the model has never seen them.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from prorl_service.errors import InvalidRequest
from prorl_service.tokens import model_files
from prorl_service.tokens.formats import HERMES, Reply, ToolCall, ToolSchema
from prorl_service.tokens.model_files import ModelFiles

PREFIX = "messages:"
"""Beginning of such a tokenizer's name. The rest names a model whose tokens are used, so that
lengths are those of its texts; without, tokens are bytes."""
START, END = "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = (START, END, "<tool_call>", "</tool_call>", "<think>", "</think>")
SAMPLE = "<|im_start|>user\n a  b\n\tc\u00e9 \u2713\n\n<think> d<|im_end|>\n"

ApiMessage = dict[str, Any]


def load(name: str) -> ModelFiles:
    """Raises `InvalidRequest`, also for a tokenizer that changes the text."""
    base = name.removeprefix(PREFIX)
    tokenizer = model_files.load(base).tokenizer if base else _of_bytes()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIAL_TOKENS])
    ids = tokenizer.encode(SAMPLE, add_special_tokens=False).ids
    added = {one.content for one in tokenizer.get_added_tokens_decoder().values() if one.special}
    is_exact = tokenizer.decode(ids, skip_special_tokens=False) == SAMPLE
    if not is_exact or not added.issuperset(SPECIAL_TOKENS):
        raise InvalidRequest.of_field(
            "tokenizer",
            f"the tokenizer of {base} does not keep a text as it is",
            hint="leave it out, or take one whose tokens are bytes, such as Qwen3's",
        )
    template = Path(__file__).with_name("messages.jinja").read_text("utf-8")
    return ModelFiles(tokenizer, template, {"eos_token": END}, None, [])


def _of_bytes() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({text: id_ for id_, text in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def written(content: str, reasoning: str, calls: Sequence[tuple[str, str, str]]) -> str:
    """Returns a reply as the template writes it. `calls`: id, name and arguments of each, as text;
    arguments that are no JSON object make a call that breaks the format. All text is defused."""
    thought = f"<think>\n{reasoning}\n</think>\n\n" if reasoning else ""
    return "".join([thought, content, *(_call(*one) for one in calls)])


def _call(call_id: str, name: str, arguments: str) -> str:
    head, tail = json.dumps(name, ensure_ascii=False), json.dumps(call_id, ensure_ascii=False)
    try:
        arguments = json.dumps(json.loads(arguments or "{}"), ensure_ascii=False)
    except (ValueError, RecursionError):
        arguments = arguments.strip()
    body = f'{{"name": {head}, "arguments": {arguments}, "id": {tail}}}'
    return f"\n<tool_call>\n{body}\n</tool_call>"


def read(text: str) -> tuple[list[ApiMessage], list[ToolSchema]]:
    """Returns the messages of a prompt, in OpenAI's form, and the tools. Every call has its result,
    as APIs ask for it; a result without a call is the user's. Raises `ValueError` for another
    template's text."""
    tools: list[ToolSchema] = []
    said = []
    for part in text.split(START)[1:]:
        role, _, rest = part.partition("\n")
        content, end, _ = rest.partition(END)
        if role == "tools":
            tools = json.loads(content)
        elif end:
            said.append((role, content))
        elif part != "assistant\n":
            raise ValueError("the prompt does not end where the assistant is to write")
    if not said:
        raise ValueError("the prompt has no messages")
    return list(_messages(said, tools)), tools


def _messages(said: Sequence[tuple[str, str]], tools: Sequence[ToolSchema]) -> Iterator[ApiMessage]:
    unanswered: list[str] = []
    for role, content in said:
        if role == "tool" and unanswered:
            yield {"role": role, "tool_call_id": unanswered.pop(0), "content": content}
            continue
        yield from _without_result(unanswered)
        unanswered = []
        if role == "assistant":
            reply = HERMES.parse(content, tools)
            message = _spoken(reply, content)
            unanswered = [call["id"] for call in message.get("tool_calls", ())]
            yield message
        else:
            yield {"role": "user" if role == "tool" else role, "content": content}
    yield from _without_result(unanswered)


def _without_result(calls: Sequence[str]) -> Iterator[ApiMessage]:
    for call_id in calls:
        yield {"role": "tool", "tool_call_id": call_id, "content": ""}


def _spoken(reply: Reply, whole: str) -> ApiMessage:
    """A call that breaks the format stays text: an API would refuse it."""
    if reply.problem is not None:
        return {"role": "assistant", "content": whole}
    message: ApiMessage = {"role": "assistant", "content": reply.content}
    if reply.calls:
        message["tool_calls"] = [_as_sent(call, place) for place, call in enumerate(reply.calls)]
    return message


def _as_sent(call: ToolCall, place: int) -> ApiMessage:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return {
        "id": call.id or f"call{place:05}",
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }
