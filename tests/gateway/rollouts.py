"""A rollout behind a gateway, whose engine plays scripted replies; and checks of its ledger."""

import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn

from prorl_service.attempt import Attempt
from prorl_service.gateway.app import application
from prorl_service.gateway.rollout import RolloutGateway
from prorl_service.schemas import Limits
from prorl_service.testing import ScriptedGenerator
from prorl_service.tokens.chat import ChatFormat
from tests.agents.attempts import attempt_of
from tests.server.application import Server, running


def tool_call(name: str = "bash", **arguments: Any) -> str:
    """Returns a call as a model of Qwen3's family writes it."""
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def thinking(thought: str, then: str = "") -> str:
    return f"<think>\n{thought}\n</think>\n\n{then}"


@dataclass(frozen=True, slots=True)
class Rollout:
    attempt: Attempt
    gateway: RolloutGateway
    engine: ScriptedGenerator
    url: str
    """Address of the gateway, while the block lasts."""

    def assert_exact(self) -> None:
        """The engine saw the ledger's very chains, and the mask is 1 on what it sampled alone."""
        trajectory = self.attempt.ledger.to_segments()
        calls = zip(self.attempt.turns, self.engine.prompts, self.engine.generations, strict=True)
        sampled = [[0] * len(segment.response_ids) for segment in trajectory]
        for turn, prompt, generation in calls:
            segment = trajectory[turn.segment]
            assert segment.prompt_ids + segment.response_ids[: turn.start] == prompt
            assert segment.response_ids[turn.start : turn.stop] == generation.token_ids
            sampled[turn.segment][turn.start : turn.stop] = [1] * len(generation.token_ids)
        assert [segment.loss_mask for segment in trajectory] == sampled

    @property
    def segments(self) -> int:
        return len(self.attempt.ledger.chains)


@asynccontextmanager
async def rollout(
    chat: ChatFormat,
    replies: Iterable[str | Sequence[int]],
    *,
    max_model_len: int = 1 << 16,
    **limits: Any,
) -> AsyncIterator[Rollout]:
    end = chat.end_of_turn_id
    answers = ([*chat.encode(one), end] if isinstance(one, str) else one for one in replies)
    engine = ScriptedGenerator(answers, end_of_turn_id=end)
    attempt = attempt_of(chat, engine, max_model_len=max_model_len, limits=Limits(**limits))
    gateway = RolloutGateway(attempt)
    config = uvicorn.Config(application(gateway), host="127.0.0.1", port=0, log_config=None)
    server = Server(config)
    async with running(server):
        port = server.servers[0].sockets[0].getsockname()[1]
        yield Rollout(attempt, gateway, engine, f"http://127.0.0.1:{port}")
