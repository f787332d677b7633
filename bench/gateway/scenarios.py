"""What real harnesses send, recorded, played to the gateway: segments and tokens for the trainer.

`whole` is what a gateway delivers that renders each request as a whole and extends a chain only
by an exact prefix: a segment for each call.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from prorl_service.inference.reference_engine.tiny import build_tiny_model
from prorl_service.tokens.chat import ChatFormat
from tests.gateway.rollouts import Rollout, rollout
from tests.gateway.test_traces import SEGMENTS
from tests.gateway.traces import exchanges, play_back, recordings

Row = dict[str, object]
CONTEXT = 1 << 20


def measure() -> list[Row]:
    with TemporaryDirectory() as directory:
        build_tiny_model(Path(directory))
        chat = ChatFormat.load(directory)
        return [asyncio.run(_row(name, chat)) for name in recordings()]


async def _row(name: str, chat: ChatFormat) -> Row:
    _, found = exchanges(name)
    replies = [one.reply for one in found]
    async with rollout(chat, replies, max_model_len=CONTEXT) as played:
        await play_back(played.context, found)
    return {
        "scenario": name,
        "calls": len(found),
        "segments": played.segments,
        "expected": SEGMENTS[name] or 1,
        "is_exact": _is_exact(played),
        "tokens": sum(len(chain.ids) for chain in played.context.ledger.chains),
        "whole_tokens": _whole(played),
    }


def _is_exact(played: Rollout) -> bool:
    try:
        played.assert_exact()
    except AssertionError:
        return False
    return True


def _whole(played: Rollout) -> int:
    sampled: Sequence[int] = [turn.stop - turn.start for turn in played.context.turns]
    return sum(map(len, played.engine.prompts)) + sum(sampled)
