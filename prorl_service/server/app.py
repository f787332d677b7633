"""The application: its parts, started in the order of their floors and stopped in reverse."""

import logging
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, Security
from fastapi.security import HTTPBearer
from fastapi_offline import FastAPIOffline

from prorl_service import __version__, sandbox
from prorl_service.agents.registry import AgentRegistry
from prorl_service.agents.services import OperatorServices
from prorl_service.front.claim import DirectoryClaim
from prorl_service.front.executor import RemoteExecutor
from prorl_service.front.services import Services
from prorl_service.inference.pool import BackendPool
from prorl_service.inference.weights.newest import Weights
from prorl_service.net.bearer import RequireBearer
from prorl_service.net.origins import RefuseForeignPages
from prorl_service.pipeline.pipeline import Pipeline
from prorl_service.rewards.judge.judge import Judge
from prorl_service.rollouts.executor import RolloutExecutor
from prorl_service.rollouts.journal import Journal
from prorl_service.rollouts.journal.owner import WEIGHTS
from prorl_service.rollouts.validation import Validator
from prorl_service.sampling.manager import SamplerManager
from prorl_service.sandbox.base import Elsewhere
from prorl_service.sandbox.images import ImageCache
from prorl_service.sandbox.warm_pool import WarmPool
from prorl_service.server.auth import REFUSAL, is_open
from prorl_service.server.compat.routes import ProRLAdapter, prorl_router
from prorl_service.server.errors import LimitBody, error_response, install_error_handlers
from prorl_service.server.metrics import metrics_router
from prorl_service.server.routes import health_router, router
from prorl_service.server.sampler_routes import sampler_router
from prorl_service.server.service import Service
from prorl_service.server.settings import Settings
from prorl_service.server.watchdog import watch_loop
from prorl_service.tokens import formats
from prorl_service.tokens.chat import ChatFormat
from prorl_service.tools.mcp.servers import McpServers
from prorl_service.utils import files
from prorl_service.utils.tasks import TaskOwner

log = logging.getLogger(__name__)

BEARER_SCHEME = Security(HTTPBearer(auto_error=False, description="`prorl token` prints it."))
"""Tells the API page of the token; it is `RequireBearer` that asks for it."""

ROOM_TIMEOUT_S = 60.0
"""How long an image waits for another's last sandbox to end where the budget is used up."""


def _check_formats(settings: Settings) -> None:
    """Raises `InvalidRequest`."""
    reply_format = settings.pool.reply_format
    if reply_format is not None:
        formats.named(reply_format)
    for spec in settings.backends:
        if spec.tokenizer is not None:
            ChatFormat.load(spec.tokenizer, reply_format)


def create_app(settings: Settings) -> FastAPI:
    """Raises `ProRLError` for settings that cannot work: agents, sandbox, tokenizers, journal,
    a directory of services that another front has."""
    _check_formats(settings)
    agents = AgentRegistry(settings.agents)
    files.remove_stale_tempdirs()
    images = ImageCache(
        settings.image_cache,
        budget_bytes=settings.image_budget_bytes,
        evict_one=lambda: sandboxes.evict_image(wait_s=ROOM_TIMEOUT_S),
    )
    provider = (
        sandbox.provider(
            settings.sandbox, default_image=settings.default_image, images=images.image
        )
        if settings.services is None
        else Elsewhere()
    )
    sandboxes = WarmPool(provider, spares=settings.warm_sandboxes)
    log.info("sandboxes: %s, up to %d of them warm", sandboxes.kind, settings.warm_sandboxes)

    journal = Journal(settings.journal, settings.retention)
    run = journal.claim(settings.run, resume=settings.resume)
    log.info("run %s, journal %s", run, settings.journal or "in memory")
    judge = None if settings.judge is None else Judge(settings.judge)
    claim = None if settings.services is None else DirectoryClaim(settings.services)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(sandboxes.close)
            if claim is not None:
                stack.callback(claim.release)
            await stack.enter_async_context(journal)
            backends = BackendPool(
                _weights_directory(settings.journal, stack),
                settings.pool,
                newest=await _newest_weights(journal),
                keep=lambda weights: journal.remember(WEIGHTS, weights.to_json()),
            )
            await stack.enter_async_context(backends)
            operator_services = await _operator_services(settings, judge, stack)
            pipeline = _pipeline(
                settings, journal, backends, sandboxes, agents, operator_services, claim
            )
            await stack.enter_async_context(pipeline)
            samplers = SamplerManager(journal, pipeline, backends)
            await stack.enter_async_context(samplers)
            for spec in settings.backends:
                await backends.add(spec, must_answer=False)
            background = TaskOwner()
            stack.push_async_callback(background.close)
            background.start(watch_loop(), name="event loop lag")
            app.state.service = Service(
                run,
                journal,
                backends,
                pipeline,
                samplers,
                sandboxes,
                operator_services.mcp,
                background,
            )
            app.state.prorl = ProRLAdapter(app.state.service)
            yield

    # FastAPI's own /docs loads its scripts from the internet, which clusters often lack.
    app = FastAPIOffline(title="ProRL rollout service", version=__version__, lifespan=lifespan)
    for routes in (router, sampler_router, prorl_router, metrics_router):
        app.include_router(routes, dependencies=[BEARER_SCHEME])
    app.include_router(health_router)
    install_error_handlers(app)
    app.add_middleware(
        LimitBody,
        max_bytes=settings.max_body_mb * 1024 * 1024,
        unlimited=["PUT /v1/weights"],
    )
    if settings.token is not None:
        app.add_middleware(RequireBearer, secret=settings.token, is_open=is_open, refusal=REFUSAL)
    app.add_middleware(
        RefuseForeignPages,
        allowed_hosts=settings.allowed_hosts,
        checks_host=settings.token is None,
        response=error_response,
    )
    return app


async def _operator_services(
    settings: Settings, judge: Judge | None, stack: AsyncExitStack
) -> OperatorServices:
    servers = McpServers(settings.mcp)
    await stack.enter_async_context(servers)
    if judge is not None:
        await stack.enter_async_context(judge)
    return OperatorServices(servers, judge)


def _pipeline(
    settings: Settings,
    journal: Journal,
    backends: BackendPool,
    sandboxes: WarmPool,
    agents: AgentRegistry,
    operator_services: OperatorServices,
    claim: DirectoryClaim | None,
) -> RolloutExecutor:
    if claim is None:
        return Pipeline(journal, backends, sandboxes, agents, settings.pipeline, operator_services)
    services = Services(claim, settings.token, backends.offers)
    validator = Validator(agents, backends, sandboxes, services=None)
    return RemoteExecutor(
        journal, validator, services, max_unfinished=settings.pipeline.max_unfinished
    )


def _weights_directory(journal: Path | None, stack: AsyncExitStack) -> Path:
    """Beside the journal, which knows what is in it."""
    if journal is not None:
        return journal.with_name(f"{journal.name}.weights")
    directory = files.temporary_directory("weights")
    stack.callback(shutil.rmtree, directory, ignore_errors=True)
    return directory


async def _newest_weights(journal: Journal) -> Weights | None:
    text = await journal.recall(WEIGHTS)
    return None if text is None else Weights.from_json(text)
