"""The gateway passes pictures on in each dialect, and replaces them for a text-only policy."""

import base64
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from prorl_service.gateway.calls import CallRequest
from prorl_service.gateway.dialects import DIALECTS, call_of
from prorl_service.schemas.pictures import canonical, id_of, shown, url_of
from prorl_service.tokens.chat import ChatFormat
from tests.gateway.rollouts import rollout
from tests.gateway.test_gateway import asked, post
from tests.pictures import encoded, png

PICTURE = encoded(Image.new("RGBA", (56, 56), (255, 0, 0, 128)))
Parts = list[dict[str, Any]]


def anthropic(content: bytes) -> dict[str, Any]:
    data = base64.b64encode(content).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


def chat_part(content: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url_of(content)}}


def conversations(content: bytes) -> dict[str, dict[str, Any]]:
    """Returns requests that show a picture between two texts, and then as the result of a tool."""
    call = {"name": "look", "arguments": "{}"}
    called = [{"id": "c1", "type": "function", "function": call}]
    of_chat = [{"type": "text", "text": "a"}, chat_part(content), {"type": "text", "text": "b"}]
    of_responses = [
        {"type": "input_text", "text": "a"},
        {"type": "input_image", "image_url": url_of(content)},
        {"type": "input_text", "text": "b"},
    ]
    of_messages = [{"type": "text", "text": "a"}, anthropic(content), {"type": "text", "text": "b"}]
    return {
        "/chat/completions": {
            "messages": [
                {"role": "user", "content": of_chat},
                {"role": "assistant", "content": None, "tool_calls": called},
                {"role": "tool", "tool_call_id": "c1", "content": [chat_part(content)]},
            ]
        },
        "/responses": {
            "input": [
                {"role": "user", "content": of_responses},
                {"type": "function_call", "call_id": "c1", **call},
                {"type": "function_call_output", "call_id": "c1", "output": of_responses[1:2]},
            ]
        },
        "/messages": {
            "max_tokens": 9,
            "messages": [
                {"role": "user", "content": of_messages},
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "c1", "name": "look", "input": {}}],
                },
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "c1",
                            "content": [anthropic(content)],
                        }
                    ],
                },
            ],
        },
    }


def read(ending: str, content: bytes, *, sees: bool) -> CallRequest:
    return call_of(DIALECTS[ending], conversations(content)[ending], sees=sees)


@pytest.mark.parametrize("ending", DIALECTS)
def test_a_policy_that_sees_is_shown_them(ending: str) -> None:
    call = read(ending, PICTURE, sees=True)
    [question, _, result] = [one.message for one in call.conversation]
    assert (question.content, [one.at for one in question.pictures]) == ("ab", [1])
    assert (result.role, result.content, result.tool_call_id) == ("tool", "", "c1")
    for one in (question, result):
        assert [picture.content for picture in one.pictures] == [canonical(PICTURE)]
    assert call.left_out == ()


@pytest.mark.parametrize("ending", DIALECTS)
def test_others_are_told_that_there_was_one(ending: str) -> None:
    for content, sees, why in (
        (PICTURE, False, "the model reads text only"),
        (PICTURE[:-40], True, "the picture cannot be read"),
    ):
        call = read(ending, content, sees=sees)
        [question, _, result] = [one.message for one in call.conversation]
        assert question.content.startswith("a[")
        assert why in question.content
        assert why in result.content
        assert not question.pictures
        assert len(call.left_out) == 2


async def test_conversations_differ_by_their_pictures(seeing_model: Path) -> None:
    """The second call continues the first, the third shows another picture before the same."""
    chat = ChatFormat.load(seeing_model)
    one, other = png(seed=1), png(seed=2)

    def begun(content: bytes) -> dict[str, Any]:
        return {"role": "user", "content": [chat_part(content), {"type": "text", "text": "Which?"}]}

    said = {"role": "assistant", "content": "red"}
    again = {"role": "user", "content": "Sure?"}
    async with rollout(chat, ["red", "yes", "yes"]) as run:
        await post(run, asked(begun(one)))
        await post(run, asked(begun(one), said, again))
        await post(run, asked(begun(other), said, again))
        first, second, third = run.engine.prompts
        trajectory = run.attempt.sampled.trajectory()
    assert second[: len(first)] == first
    assert [*shown(first)] == [*shown(second)] == [id_of(canonical(one))]
    assert [*shown(third)] == [id_of(canonical(other))]
    assert len(trajectory.segments) == 2
    assert trajectory.contents().keys() == {id_of(canonical(one)), id_of(canonical(other))}
