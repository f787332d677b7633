"""Formats with unquoted arguments between tags: Qwen3-Coder and Qwen3.5+, GLM-4.5+, MiniMax.

Only the tool's schema says whether `1` is a number or text. A value is the text up to its closing
tag, with its indentation.
"""

import re
from collections.abc import Callable

from prorl_service.tokens.formats.base import Malformed, ToolCall, Types
from prorl_service.tokens.formats.tagged import Read, Tagged, consecutive
from prorl_service.tokens.formats.values import typed

_QWEN_ARGUMENT = r"<parameter=([^>\n]++)>((?:(?!</parameter>)[\s\S])*+)</parameter>\s*+"
_GLM_ARGUMENT = (
    r"<arg_key>([^<]*+)</arg_key>\s*+"
    r"<arg_value>((?:(?!</arg_value>)[\s\S])*+)</arg_value>\s*+"
)
_MINIMAX_ARGUMENT = r'<parameter name="([^"]++)">((?:(?!</parameter>)[\s\S])*+)</parameter>\s*+'

_QWEN = rf"\s*+<function=([^>\n]++)>\s*+((?:{_QWEN_ARGUMENT})*+)</function>\s*+"
_GLM = rf"\s*+([^\s<][^<\n]*+)\s*+((?:{_GLM_ARGUMENT})*+)"
_MINIMAX = rf'\s*+<invoke name="([^"]++)">\s*+((?:{_MINIMAX_ARGUMENT})*+)</invoke>\s*+'


def _reader(call: str, argument: str, form: str, unwrap: Callable[[str], str] = str) -> Read:
    """Returns a reader of consecutive calls. `form` shows how a call is written."""
    arguments = re.compile(argument)

    def one(match: re.Match[str], types: Types) -> ToolCall:
        name = match[1].strip()
        schemas = types.get(name, {})
        values: dict[str, object] = {}
        for key, value in arguments.findall(match[2]):
            if key.strip() in values:
                raise Malformed(f"the tool call has the argument {key.strip()!r} twice")
            values[key.strip()] = typed(unwrap(value), schemas.get(key.strip()))
        return ToolCall(name, values)

    return consecutive(call, form, one)


def _without_newlines(value: str) -> str:
    """Removes the two newlines that the template puts around a value."""
    return value.removeprefix("\n").removesuffix("\n")


QWEN_CODER = Tagged(
    "qwen3-coder",
    ("<tool_call>", "</tool_call>"),
    _reader(
        _QWEN,
        _QWEN_ARGUMENT,
        "<function=NAME><parameter=ARGUMENT>VALUE</parameter></function>",
        _without_newlines,
    ),
    stray=r"<function=[^>\n]++>\s*+<parameter=",
)
GLM = Tagged(
    "glm-4.5",
    ("<tool_call>", "</tool_call>"),
    _reader(
        _GLM,
        _GLM_ARGUMENT,
        "NAME<arg_key>ARGUMENT</arg_key><arg_value>VALUE</arg_value>",
    ),
    stray="<arg_key>",
)
MINIMAX = Tagged(
    "minimax-m2",
    ("<minimax:tool_call>", "</minimax:tool_call>"),
    _reader(
        _MINIMAX,
        _MINIMAX_ARGUMENT,
        '<invoke name="NAME"><parameter name="ARGUMENT">VALUE</parameter></invoke>',
    ),
    stray='<invoke name="',
)
