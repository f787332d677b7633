"""The application on a port of this machine, and a task for it."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
from fastapi import FastAPI

from prorl_service.client import AsyncRolloutClient
from prorl_service.inference.pool import PoolConfig
from prorl_service.net.connections import Bounds
from prorl_service.pipeline.config import PipelineConfig
from prorl_service.rewards.judge.judge import JudgeConfig
from prorl_service.sandbox import SandboxKind
from prorl_service.schemas import BackendSpec, Group, Limits, Rollout
from prorl_service.server.app import create_app
from prorl_service.server.compose import front_service, rollout_service
from prorl_service.server.run import http_config
from prorl_service.server.service import Service
from prorl_service.server.settings import (
    EngineOptions,
    FrontSettings,
    HttpOptions,
    JudgeOptions,
    McpOptions,
    RunOptions,
    SandboxOptions,
    ServiceSettings,
    TraceOptions,
)
from prorl_service.shelf.policy import ShelfOptions
from prorl_service.tools.spec import McpSpec
from tests import builders

Found = TypeVar("Found")


class Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Options of a service or, with `services`, of a front, in one flat class."""

    backends: tuple[BackendSpec, ...] = ()
    agents: tuple[str, ...] = ()
    services: Path | None = None
    sandbox: SandboxKind = "auto"
    warm_sandboxes: int = 8
    run: str | None = None
    journal: Path | None = None
    resume: bool = False
    max_unfinished: int = 50_000
    max_unfinished_per_client: int | None = None
    pool: PoolConfig = PoolConfig()
    pipeline: PipelineConfig = PipelineConfig()
    mcp: tuple[McpSpec, ...] = ()
    judge: JudgeConfig | None = None
    traces: TraceOptions = TraceOptions()
    max_body_mb: int = 64
    shelf: ShelfOptions = ShelfOptions()
    token: str | None = None
    allowed_hosts: tuple[str, ...] = ()

    def composing(self) -> AbstractAsyncContextManager[Service]:
        run = RunOptions(
            run=self.run,
            journal="none" if self.journal is None else str(self.journal),
            resume=self.resume,
            max_unfinished=self.max_unfinished,
            max_unfinished_per_client=self.max_unfinished_per_client,
            shelf=self.shelf,
        )
        if self.services is not None:
            front = FrontSettings(
                services=self.services,
                wait_for=0,
                agent=self.agents,
                engines=self._engines(),
                run=run,
                traces=self.traces,
            )
            return front_service(front, self.token, report=lambda _: None)
        return rollout_service(
            ServiceSettings(
                agent=self.agents,
                engines=self._engines(),
                pool=self.pool,
                run=run,
                sandboxes=SandboxOptions(sandbox=self.sandbox, warm_sandboxes=self.warm_sandboxes),
                pipeline=self.pipeline,
                mcp=self._mcp(),
                judge=self._judge(),
                traces=self.traces,
            )
        )

    def _mcp(self) -> McpOptions:
        return McpOptions(
            mcp=tuple(f"{spec.name}={spec.url}" for spec in self.mcp),
            mcp_tools=tuple(f"{one.name}={','.join(one.tools)}" for one in self.mcp if one.tools),
        )

    def _judge(self) -> JudgeOptions:
        if self.judge is None:
            return JudgeOptions()
        if self.judge.key is not None:
            os.environ["PRORL_JUDGE_KEY"] = self.judge.key
        return JudgeOptions(
            judge_url=self.judge.url,
            judge_model=tuple(self.judge.models),
            judge_cache=self.judge.cache,
            judge_max_calls=self.judge.max_calls,
        )

    def _engines(self) -> EngineOptions:
        for spec in self.backends:
            if spec.api_key is not None:  # taken out again where the service is composed
                os.environ["PRORL_BACKEND_KEY"] = spec.api_key
        tokenizers = {spec.tokenizer for spec in self.backends} or {None}
        assert len(tokenizers) == 1
        return EngineOptions(backend=tuple(map(_option, self.backends)), tokenizer=tokenizers.pop())


def _option(spec: BackendSpec) -> str:
    return spec.url if spec.model is None else f"{spec.kind}:{spec.model}@{spec.url}"


@asynccontextmanager
async def application(settings: Settings) -> AsyncIterator[FastAPI]:
    async with settings.composing() as service:
        options = HttpOptions(allow_host=settings.allowed_hosts, max_body_mb=settings.max_body_mb)
        yield create_app(service, options, settings.token)


@asynccontextmanager
async def serving(settings: Settings, bounds: Bounds | None = None) -> AsyncIterator[str]:
    async with application(settings) as app:
        server = Server(http_config(app, bounds or Bounds(), port=0))
        async with running(server):
            port = server.servers[0].sockets[0].getsockname()[1]
            yield f"http://127.0.0.1:{port}"


@asynccontextmanager
async def connected(settings: Settings, **options: Any) -> AsyncIterator[AsyncRolloutClient]:
    """Client of a service of its own; `options` are the client's."""
    async with serving(settings) as url, AsyncRolloutClient(url, **options) as client:
        yield client


@asynccontextmanager
async def running(
    server: Server, sockets: list[socket.socket] | None = None
) -> AsyncIterator[None]:
    task = asyncio.create_task(server.serve(sockets))
    await server.ready.wait()
    try:
        yield
    finally:
        server.should_exit = True
        await task


def group(group_id: str = "g", n: int = 1, **limits: Any) -> Group:
    data = {"answer": "4711", "files": {"secret": "4711\n"}}
    task = builders.task("read", "What is the secret number?", data=data)
    return Group(group_id=group_id, task=task, n=n, limits=Limits(**limits))


async def until(
    ask: Callable[[], Awaitable[Found]], holds: Callable[[Found], object] = bool
) -> Found:
    """Returns the answer once `holds` is true of it; only the test's own timeout bounds it."""
    while not holds(found := await ask()):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return found


async def finished(client: AsyncRolloutClient, submitted: Group) -> list[Rollout]:
    await client.submit([submitted])
    return await client.wait(submitted.rollout_ids(), timeout_s=60)
