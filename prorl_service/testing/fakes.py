"""Fakes for testing agents without an engine or a sandbox. Not used by the service itself."""

import errno
import json
import math
import os
import random
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from prorl_service.errors import SandboxError
from prorl_service.inference.base import Generation
from prorl_service.sandbox.base import OnOutput, SandboxLimits, SandboxProvider, ToolResult
from prorl_service.sandbox.layers import Guard, Layer
from prorl_service.schemas import Sampling
from prorl_service.tokens.chat import ChatFormat


class ScriptedGenerator:
    """Answers each call with the next list of ids; `prompts` keeps the prompt of each call."""

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
        """Answers with `texts`, each as a reply that ends its turn."""
        end = chat.end_of_turn_id
        return cls(([*chat.encode(text), end] for text in texts), end_of_turn_id=end)

    async def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        sampling: Sampling,
        max_tokens: int,
        seed: int | None,
        stop_token_ids: list[int],
        stop: Sequence[str] = (),
        pictures: Sequence[bytes] = (),
    ) -> Generation:
        ids = list(next(self._answers))[:max_tokens]
        ended = bool(ids) and ids[-1] in (self._end_of_turn_id, *stop_token_ids)
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
    """Keeps files in a dict; answers each tool call with a function of its name and arguments."""

    def __init__(self, answer: Answer) -> None:
        self.files: dict[str, bytes] = {}
        self.added_tools: dict[str, str] = {}
        self.running = False
        self._answer = answer

    @property
    def programs(self) -> str:
        return "/programs"

    @property
    def python(self) -> str:
        return sys.executable

    async def start(self) -> None:
        self.running = True

    async def ping(self, *, timeout_s: float) -> None:
        if not self.running:
            raise SandboxError("the sandbox is not running")

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        timeout_s: float,
        on_output: OnOutput | None = None,
    ) -> ToolResult:
        return self._answer(name, arguments)

    async def add_tool(self, name: str, source: str) -> None:
        self.added_tools[name] = source

    async def upload(self, path: str, content: bytes) -> None:
        self.files[path] = content

    async def download(self, path: str, *, max_bytes: int | None = None) -> bytes:
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self.files[path]

    async def snapshot(self, path: str) -> bytes:
        return self.files[path]

    async def restore(self, path: str, tar: bytes) -> None:
        self.files[path] = tar

    async def end_processes(self) -> None:
        return

    def suspended(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def save_layer(self, *, max_bytes: int) -> Layer:
        layer = Layer()
        layer.append(json.dumps({path: text.hex() for path, text in self.files.items()}).encode())
        return layer

    async def restore_layer(self, layer: Layer, guard: Guard) -> dict[str, int]:
        [piece] = layer.pieces()
        self.files |= {path: bytes.fromhex(text) for path, text in json.loads(piece).items()}
        return {}

    async def listen(self, port: int) -> socket.socket:
        return socket.create_server(("127.0.0.1", port))

    async def stop(self) -> None:
        self.running = False


class FakeSandboxes(SandboxProvider):
    """A provider of `FakeSandbox`; `made` keeps the sandboxes, `expected` the prewarmed images."""

    kind = "fake"

    def __init__(self, answer: Answer) -> None:
        self.made: list[FakeSandbox] = []
        self.expected: list[Sequence[str | None]] = []
        self._answer = answer

    def create(
        self, *, image: str | None, limits: SandboxLimits, user: str | None = None
    ) -> FakeSandbox:
        self.made.append(FakeSandbox(self._answer))
        return self.made[-1]

    def prewarm(self, images: Sequence[str | None]) -> None:
        self.expected.append(images)
