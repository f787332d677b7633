"""Requests of real harnesses, recorded, played to the gateway: chains, kinds, tokens."""

from collections import Counter

import pytest

from prorl_service.tokens.chat import ChatFormat
from tests.gateway.rollouts import Rollout, rollout
from tests.gateway.traces import exchanges, play_back, recordings

SEGMENTS = Counter(
    {
        "mini_swe_agent-bad_calls": 3,  # two replies that it cannot run are left out
        "qwen_code-bad_calls": 2,  # one reply is asked for again
        "claude_code-sub_agent": 2,  # the agent and its sub-agent
        "claude_code_bare-reasoning_only": 2,  # a reply without text is left out
        "qwen_code-reasoning_only": 3,
    }
)
"""Numbers of segments where there is not just one."""


async def play(name: str, chat: ChatFormat) -> Rollout:
    _, found = exchanges(name)
    async with rollout(chat, [one.reply for one in found], max_model_len=1 << 20) as played:
        await play_back(played.attempt, found)
        return played


@pytest.mark.parametrize("name", recordings())
async def test_a_conversation_is_a_segment_and_exact(name: str, chat: ChatFormat) -> None:
    played = await play(name, chat)
    played.assert_exact()
    assert played.segments == (SEGMENTS[name] or 1)
