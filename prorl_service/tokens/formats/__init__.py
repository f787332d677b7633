"""Formats in which families of models write reasoning and tool calls. Pure.

`BY_NAME` holds all formats. `candidates` looks at what a chat template prints;
`prorl_service.tokens.probe` finds out which of them it uses: it has the template write a call, and
reads it back.
"""

from prorl_service.errors import InvalidRequest
from prorl_service.tokens.formats.base import BrokenCall as BrokenCall
from prorl_service.tokens.formats.base import Problem as Problem
from prorl_service.tokens.formats.base import Reply as Reply
from prorl_service.tokens.formats.base import ReplyFormat as ReplyFormat
from prorl_service.tokens.formats.base import ToolCall as ToolCall
from prorl_service.tokens.formats.base import ToolSchema as ToolSchema
from prorl_service.tokens.formats.delimited import DEEPSEEK_V3, DEEPSEEK_V31, KIMI
from prorl_service.tokens.formats.gemma import GEMMA
from prorl_service.tokens.formats.harmony import HARMONY
from prorl_service.tokens.formats.hermes import HERMES as HERMES
from prorl_service.tokens.formats.llama import LLAMA
from prorl_service.tokens.formats.mistral import MISTRAL
from prorl_service.tokens.formats.plain import PLAIN as PLAIN
from prorl_service.tokens.formats.xml import GLM, MINIMAX, QWEN_CODER

_PRINTED: list[tuple[str, ReplyFormat]] = [
    ("<arg_key>", GLM),
    ("<minimax:tool_call>", MINIMAX),
    ("<|tool_calls_section_begin|>", KIMI),
    ("<｜tool▁calls▁begin｜>", DEEPSEEK_V31),
    ("<｜tool▁calls▁begin｜>", DEEPSEEK_V3),
    ("<|tool_call>", GEMMA),
    ("<|channel|>", HARMONY),
    ("[TOOL_CALLS]", MISTRAL),
    ("<function=", QWEN_CODER),
    ("<tool_call>", HERMES),
    ("<|start_header_id|>", LLAMA),
]
"""Text that templates print for calls, the most specific first."""

BY_NAME: dict[str, ReplyFormat] = {one.name: one for _, one in _PRINTED} | {PLAIN.name: PLAIN}


def candidates(template: str) -> list[ReplyFormat]:
    """Returns formats that a template may print calls in, the likeliest first."""
    return [one for printed, one in _PRINTED if printed in template]


def named(name: str) -> ReplyFormat:
    """Raises `InvalidRequest` for an unknown name, and lists all names."""
    if name not in BY_NAME:
        raise InvalidRequest.of_field(
            "reply_format", f"there is no {name!r}; take one of {', '.join(sorted(BY_NAME))}"
        )
    return BY_NAME[name]
