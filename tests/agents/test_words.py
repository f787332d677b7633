"""What a reply says in all: structured output is graded by its texts, as calls are."""

import pytest

from prorl_service.agents.base import words_of
from prorl_service.tokens.formats import Reply, ToolCall


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (Reply("It is 42."), "It is 42."),
        (Reply('{"a": "\\\\boxed{42}"}'), '{"a": "\\\\boxed{42}"}\n\\boxed{42}'),
        (Reply('{"a": [{"b": "one"}, 2], "c": "two"}'), None),
        (Reply('{"a": '), '{"a": '),
        (Reply("[" * 10**6), "[" * 10**6),
        (Reply('{"a":' * 10**5), '{"a":' * 10**5),
        (Reply("So.", calls=[ToolCall("submit", {"answer": "42", "n": 1})]), "So.\n42"),
    ],
)
def test_all_texts_of_a_reply(reply: Reply, words: str | None) -> None:
    assert words_of(reply) == (words or f"{reply.content}\none\ntwo")
