"""Fakes for testing agents without an engine or a sandbox. Not used by the service itself."""

import asyncio
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from aiohttp import web

from prorl_service.inference.base import Generation
from prorl_service.sandbox.base import Sandbox, SandboxLimits, ToolResult
from prorl_service.schemas import Sampling
from prorl_service.tokens.chat import ChatFormat


class ScriptedGenerator:
    """Answers with given ids, one list per call; `prompts` keeps what each call was asked with."""

    def __init__(
        self, answers: Iterable[Sequence[int]], *, end_of_turn_id: int, seed: int = 0
    ) -> None:
        self.prompts: list[list[int]] = []
        self.generations: list[Generation] = []
        self._answers = iter(answers)
        self._end_of_turn_id = end_of_turn_id
        self._random = random.Random(seed)

    @classmethod
    def of_texts(cls, texts: Iterable[str], chat: ChatFormat) -> "ScriptedGenerator":
        """Every text is a reply that ends its turn."""
        end = chat.end_of_turn_id
        return cls(([*chat.encode(text), end] for text in texts), end_of_turn_id=end)

    async def generate(
        self,
        prompt_ids: list[int],
        *,
        sampling: Sampling,
        max_tokens: int,
        seed: int | None,
        stop_token_ids: list[int],
    ) -> Generation:
        ids = list(next(self._answers))[:max_tokens]
        ended = bool(ids) and ids[-1] == self._end_of_turn_id
        self.prompts.append(list(prompt_ids))
        generation = Generation(
            token_ids=ids,
            logprobs=[math.log(self._random.uniform(0.01, 1.0)) for _ in ids],
            policy_versions=[self._random.randrange(4) for _ in ids],
            finish_reason="stop" if ended else "length",
            cached_tokens=0,
            backend="scripted",
        )
        self.generations.append(generation)
        return generation


Answer = Callable[[str, Mapping[str, Any]], ToolResult]


class FakeSandbox:
    """Keeps files in a dict and answers every tool call by a function of its name and arguments."""

    sandbox_id = "fake"

    def __init__(self, answer: Answer) -> None:
        self.files: dict[str, bytes] = {}
        self.running = False
        self._answer = answer

    async def start(self) -> None:
        self.running = True

    async def call_tool(
        self, name: str, arguments: Mapping[str, Any], *, timeout_s: float
    ) -> ToolResult:
        return self._answer(name, arguments)

    async def upload(self, path: str, content: bytes) -> None:
        self.files[path] = content

    async def download(self, path: str) -> bytes:
        return self.files[path]

    async def stop(self) -> None:
        self.running = False


class FakeSandboxes:
    """A provider of `FakeSandbox`; `made` keeps them all."""

    kind = "fake"

    def __init__(self, answer: Answer) -> None:
        self.made: list[FakeSandbox] = []
        self._answer = answer

    def create(self, *, image: str | None, limits: SandboxLimits) -> Sandbox:
        self.made.append(FakeSandbox(self._answer))
        return self.made[-1]


class StubEngine:
    """An engine's routes over real HTTP; every answer is a function of the prompt.

    `async with StubEngine(...) as engine`. Set `status` to make every call fail with it,
    `latency_s` to slow them down, `version` or `model_id` to claim to be another; `calls` counts.
    """

    def __init__(
        self,
        model: Path,
        answer: Callable[[list[int]], Sequence[int]],
        *,
        latency_s: float = 0.0,
        max_model_len: int = 4096,
    ) -> None:
        self.latency_s = latency_s
        self.status = 200
        self.version = 0
        self.model_id = "stub"
        self.calls = 0
        self.url = ""
        self._model = model
        self._answer = answer
        self._max_model_len = max_model_len

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/weight_info", self._weight_info)
        app.router.add_post("/inference/v1/generate", self._generate)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=self.status)

    async def _models(self, request: web.Request) -> web.Response:
        model = {
            "id": self.model_id,
            "root": str(self._model),
            "max_model_len": self._max_model_len,
            "owned_by": "stub",
        }
        return web.json_response({"data": [model]})

    async def _weight_info(self, request: web.Request) -> web.Response:
        return web.json_response({"weight_version": str(self.version)})

    async def _generate(self, request: web.Request) -> web.Response:
        self.calls += 1
        body = await request.json()
        await asyncio.sleep(self.latency_s)
        if self.status != 200:
            return web.json_response({"error": {"message": "stub"}}, status=self.status)
        prompt, limit = body["token_ids"], body["sampling_params"]["max_tokens"]
        ids = list(self._answer(prompt))
        kept = ids[:limit]
        choice = {
            "index": 0,
            "finish_reason": "stop" if kept == ids else "length",
            "token_ids": kept,
            "logprobs": {"content": [{"token_id": id_, "logprob": -0.5} for id_ in kept]},
            "weight_versions": [{"version": str(self.version), "start": 0, "end": len(kept)}],
        }
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(kept)}
        return web.json_response({"choices": [choice], "usage": usage})
