"""A stub engine that counts the model calls of each group, including those that were cut short."""

from collections import Counter
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from bench.nodes.engine import WaitingEngine
from prorl_service.tokens.chat import ChatFormat

SESSION_HEADER = "X-Session-ID"


class CountingEngine(WaitingEngine):
    def __init__(self, model: Path, latency_s: float) -> None:
        chat = ChatFormat.load(model)
        answer = [*chat.encode("Well."), chat.end_of_turn_id]
        super().__init__(model, lambda _: answer)
        self.mean_s = latency_s
        self.turns: Counter[str] = Counter()
        """Model calls, keyed by group."""

    def lend(self) -> None:
        """Holds all calls until weights have been loaded."""
        self._running.clear()

    async def _generate(self, request: Request) -> Response:
        rollout_id = request.headers[SESSION_HEADER]
        self.turns[rollout_id.rpartition(".")[0]] += 1
        return await super()._generate(request)
