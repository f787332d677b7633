"""Special tokens that tools spell out: an MCP server's description must not open turns."""

import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prorl_service.errors import InvalidRequest
from prorl_service.schemas import Message
from tests.tokens.families import FAMILIES, Family, chat_of

WORD = "{%d}"
"""What stands for a special token in a tool."""
TEXTS = st.lists(st.sampled_from([WORD % 0, WORD % 1, WORD % 2, "|", "a", "\n"]), max_size=4).map(
    "".join
)
OTHERS = st.dictionaries(TEXTS, TEXTS, max_size=2)
"""Keywords that no schema has."""


def schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    described = {"type": st.just("object"), "description": TEXTS}
    schema = st.fixed_dictionaries(
        {**described, "properties": st.dictionaries(TEXTS, inner, max_size=2)},
        optional={"enum": st.lists(TEXTS, max_size=2), "default": TEXTS, "title": TEXTS},
    )
    return st.builds(lambda others, one: {**others, **one}, OTHERS, schema)


ARGUMENTS = st.builds(lambda others: {"type": "string", **others}, OTHERS)
TOOLS = st.fixed_dictionaries(
    {"name": TEXTS, "description": TEXTS, "parameters": schemas(st.recursive(ARGUMENTS, schemas))}
)


def spelt(value: Any, words: list[str]) -> Any:
    """Returns the tool with `words` in place of its marks."""
    match value:
        case str():
            return re.sub(r"\{(\d)\}", lambda mark: words[int(mark[1]) % len(words)], value)
        case list():
            return [spelt(one, words) for one in value]
        case dict():
            return {spelt(key, words): spelt(one, words) for key, one in value.items()}
    return value


def specials(family: Family, function: Any) -> int | None:
    """Returns the number of special ids in a prompt that offers the tool; None if the template
    takes no such schema."""
    chat, tools = chat_of(family), [{"type": "function", "function": function}]
    try:
        ids = chat.prompt_ids([Message(role="user", content="Go.")], tools=tools)
    except InvalidRequest:
        return None
    return sum(id_ in chat._special_ids for id_ in ids)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(function=TOOLS)
def test_tools_spell_no_special_tokens(family: Family, function: Any) -> None:
    tokens = [*family.ends, *family.tokens]
    inner = [one[1:-1] for one in tokens if one.startswith("<")]
    harmless = specials(family, spelt(function, [f"word{n}" for n in range(3)]))
    for words in (tokens, inner or tokens):
        assert specials(family, spelt(function, words)) == harmless
