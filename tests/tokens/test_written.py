"""Replies that a template writes for messages, as the model would sample them."""

from copy import copy

import pytest
from pydantic import JsonValue

from prorl_service.errors import InvalidRequest
from prorl_service.schemas import Message
from prorl_service.testing import call
from prorl_service.testing.replies import CutReply, token_ids
from prorl_service.tokens.chat import ChatFormat
from prorl_service.tokens.formats import PLAIN
from tests.tokens.families import FAMILIES, Family, chat_of


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_call_is_read_back_in_each_family(family: Family) -> None:
    chat = chat_of(family)
    wanted: dict[str, JsonValue] = {"command": 'echo "a b"\nls', "times": 3}
    ids, ends_turn = token_ids(call("bash", **wanted), chat)
    assert ends_turn
    assert ids[-1] in chat.end_ids
    assert not set(ids[:-1]) & chat.end_ids
    tool = {"type": "function", "function": {"name": "bash"}}
    reply = chat.read(chat.decode(ids, stopped=True), [], [tool])
    assert reply.problem is None
    assert [(one.name, one.arguments) for one in reply.calls] == [("bash", wanted)]


def test_reasoning_and_text_are_written_as_well(chat: ChatFormat) -> None:
    message = Message(role="assistant", content="It is 42.", reasoning_content="6 * 7")
    reply = chat.read(chat.written(message), [])
    assert (reply.reasoning, reply.content) == ("6 * 7", "It is 42.")


def test_a_call_that_no_format_reads_is_refused(chat: ChatFormat) -> None:
    plain = copy(chat)
    plain.replies = PLAIN
    with pytest.raises(InvalidRequest, match="does not write calls of bash"):
        plain.written(call("bash", command="ls"))


def test_a_reply_ends_where_the_engine_would_stop(chat: ChatFormat) -> None:
    end = chat.token(chat.end_of_turn_id)
    ids, ends_turn = token_ids(f"Done.{end}More.", chat)
    assert (chat.decode(ids), ends_turn) == ("Done.", True)
    assert token_ids(CutReply("Done."), chat) == (chat.encode("Done."), False)
