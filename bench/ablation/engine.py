"""A modelled engine as a process: samples what the workload says, in the time that a model would.

`python -m bench.ablation.engine MODEL_DIRECTORY --port PORT`. Time passes as `model` says. No GPU
and no model. `POST /reset` sets seed, pace and slowness; `GET /report` reports turns by group.
"""

import asyncio
import sys
from collections import Counter
from pathlib import Path

import orjson
import uvloop
from aiohttp import web

from bench.ablation import workload
from bench.ablation.model import Model
from bench.load.engine_base import TokenEngine, call_text, generated, json_response
from bench.load.workload import SESSION_HEADER

CLOSING = "This is what is on the machine."
FILLER = " and look at the files"


class ModelledEngine(TokenEngine):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._filler = self.chat.encode(FILLER)
        self._model = Model(1.0)
        self._clock: asyncio.Task[None] | None = None
        self._seed, self._pace = 0, 1.0
        self._turns: Counter[str] = Counter()
        """Model calls of each rollout."""

    def app(self) -> web.Application:
        app = super().app()
        app.router.add_post("/reset", self._reset)
        return app

    async def _reset(self, request: web.Request) -> web.Response:
        """Forgets all rollouts and what is cached of them."""
        body = orjson.loads(await request.read())
        self._seed, self._pace = body["seed"], body["pace"]
        self._turns = Counter()
        self._model = Model(body["slowness"])
        if self._clock is not None:
            self._clock.cancel()
        self._clock = asyncio.create_task(self._model.run())
        return json_response({})

    async def report(self, request: web.Request) -> web.Response:
        by_group: Counter[str] = Counter()
        for rollout_id, turns in self._turns.items():
            by_group[rollout_id.rpartition(".")[0]] += turns
        return json_response(dict(by_group))

    def _ids(self, rollout_id: str, turn: int) -> list[int]:
        """Returns a reply: filler up to its number of tokens, then its call or the last words."""
        is_last = turn + 1 >= workload.end(self._seed, rollout_id).turns
        text = CLOSING if is_last else call_text(workload.command(self._seed, rollout_id, turn))
        ids = [*self.chat.encode(text), self.chat.end_of_turn_id]
        missing = workload.tokens(self._seed, rollout_id, turn, self._pace) - len(ids)
        repeats = max(0, missing) // len(self._filler)
        return [*self._filler * repeats, *ids]

    async def generate(self, request: web.Request) -> web.Response:
        body = orjson.loads(await request.read())
        # A rollout's calls may go to several engines: the turn's number comes with the call's seed.
        rollout_id, context = request.headers[SESSION_HEADER], len(body["token_ids"])
        turn = body["sampling_params"]["seed"] % workload.MAX_CALLS
        self._turns[rollout_id] += 1
        ids = self._ids(rollout_id, turn)
        return generated(ids, context, await self._model.sample(rollout_id, context, len(ids)))


if __name__ == "__main__":
    model, _, port = sys.argv[1:]
    uvloop.run(ModelledEngine(Path(model)).serve(int(port)))
