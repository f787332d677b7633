"""Services made of their parts, which are started from the bottom up and stopped in reverse.

There are two: one that does the rollouts itself, and a front that has others do them. Knows nothing
of HTTP.
"""

import asyncio
import logging
import os
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from prorl_service import sandbox
from prorl_service.agents.registry import AgentRegistry
from prorl_service.agents.services import OperatorServices
from prorl_service.errors import ProRLError
from prorl_service.front.claim import DirectoryClaim
from prorl_service.front.executor import RemoteExecutor
from prorl_service.front.services import Services
from prorl_service.gateway.doors import Doors
from prorl_service.gateway.harnesses import preset
from prorl_service.inference.ownership import PolicyOwner
from prorl_service.inference.pool import BackendPool, PoolConfig
from prorl_service.inference.pushed import PushedWeights
from prorl_service.net.chat_model import ChatModel
from prorl_service.pipeline.pipeline import Pipeline
from prorl_service.rewards.judge.judge import Judge
from prorl_service.rollouts.executor import RolloutExecutor
from prorl_service.rollouts.journal import Journal, tables
from prorl_service.rollouts.journal.owner import POLICY, WEIGHTS
from prorl_service.rollouts.validation import Validator
from prorl_service.sampling import tables as sampler_tables
from prorl_service.sampling.filter import GroupState
from prorl_service.sampling.manager import SamplerManager
from prorl_service.sandbox.base import SandboxProvider
from prorl_service.sandbox.images import ImageOptions
from prorl_service.sandbox.warm_pool import WarmPool
from prorl_service.schemas import BackendSpec, Group
from prorl_service.server.samples import keep_samples
from prorl_service.server.service import Service
from prorl_service.server.settings import (
    EngineOptions,
    FrontSettings,
    RunOptions,
    SandboxOptions,
    ServiceSettings,
    TraceOptions,
)
from prorl_service.server.watchdog import watch_loop
from prorl_service.shelf.details import Details
from prorl_service.shelf.events import EventHub
from prorl_service.shelf.history import HistoryFile
from prorl_service.shelf.lists import Lists
from prorl_service.shelf.shelving import Now
from prorl_service.shelf.store import Shelf
from prorl_service.tokens import formats
from prorl_service.tokens.chat import ChatFormat
from prorl_service.tools.mcp.servers import McpServers
from prorl_service.tools.nemo_gym.servers import NemoGymServers
from prorl_service.utils import files
from prorl_service.utils.tasks import TaskOwner

if TYPE_CHECKING:
    from prorl_service.traces.export import Traces

log = logging.getLogger(__name__)

ROOM_TIMEOUT_S = 60.0
"""Seconds that a new image waits, once the budget is used up, for another's last sandbox to end."""

MOST_LISTED = 12
"""Problems of unfinished work that a refusal lists."""


@asynccontextmanager
async def rollout_service(
    settings: ServiceSettings,
    *,
    agents: AgentRegistry | None = None,
    provider: SandboxProvider | None = None,
    shared: Path | None = None,
) -> AsyncIterator[Service]:
    """Runs a service that does the rollouts itself. Raises `ProRLError` for settings that cannot
    work: agents, sandbox, tokenizers, journal, MCP servers.

    `agents` and `provider` replace those of the settings. `shared`: directory that services of the
    same fronts see, in which they hand rollouts over.
    """
    async with AsyncExitStack() as stack:
        _add_presets(settings.preset)
        specs = _checked(settings.engines, settings.pool.reply_format)
        judge_config, mcp_specs = settings.judge.config(), settings.mcp.specs()
        user_config = settings.user.config()
        environments = settings.openenv.servers()
        network = settings.sandboxes.network()
        gyms = settings.nemo_gym.servers()
        agents = agents or AgentRegistry(settings.agent)
        files.remove_stale_tempdirs()
        traces = await _traces(settings.traces, stack)
        if provider is None:
            sandboxes = _sandboxes(settings.sandboxes)
        else:
            sandboxes = WarmPool(provider, spares=settings.sandboxes.warm_sandboxes)
        stack.push_async_callback(sandboxes.close)
        kept = await _kept(settings.run, stack)
        backends = await _backends(kept.journal, settings.pool, stack)
        servers = await stack.enter_async_context(McpServers(mcp_specs))
        judge = None
        if judge_config is not None:
            judge = await stack.enter_async_context(Judge(judge_config))
        user = None
        if user_config is not None:
            user = await stack.enter_async_context(ChatModel(user_config))
        await stack.enter_async_context(environments)
        await stack.enter_async_context(gyms)
        operator_services = OperatorServices(
            servers,
            judge,
            nemo_gym=gyms,
            openenv=environments,
            network=network,
            user=user,
        )
        pipeline = Pipeline(
            kept.journal,
            backends,
            sandboxes,
            agents,
            settings.pipeline,
            operator_services,
            max_unfinished=settings.run.max_unfinished,
            max_unfinished_per_client=settings.run.max_unfinished_per_client,
            shared=shared,
        )
        if traces is not None:
            traces.follow(pipeline, kept.run, backends.provider)
        yield await _started(
            kept,
            backends,
            pipeline,
            specs,
            stack,
            abandoned=settings.run.abandon_agent,
            sandboxes=sandboxes,
            mcp=servers,
            doors=operator_services.doors,
            nemo_gym=gyms,
        )


@asynccontextmanager
async def front_service(
    settings: FrontSettings, token: str | None, *, report: Callable[[str], None]
) -> AsyncIterator[Service]:
    """Runs a front for the services announced in a directory, which must use its `token`. `report`
    gets progress while too few of them answer. Raises `ProRLError`, also if another front has
    them."""
    async with AsyncExitStack() as stack:
        _add_presets(settings.preset)
        specs = _checked(settings.engines, None)
        agents = AgentRegistry(settings.agent)
        files.remove_stale_tempdirs()
        traces = await _traces(settings.traces, stack)
        claim = DirectoryClaim(settings.services)
        stack.callback(claim.release)
        kept = await _kept(settings.run, stack)
        backends = await _backends(kept.journal, PoolConfig(), stack)
        services = Services(claim, token, backends)
        executor = RemoteExecutor(
            kept.journal,
            Validator(agents, backends, local=None),
            services,
            max_unfinished=settings.run.max_unfinished,
            max_unfinished_per_client=settings.run.max_unfinished_per_client,
        )
        if traces is not None:
            traces.follow(executor, kept.run, backends.provider)
        service = await _started(
            kept,
            backends,
            executor,
            specs,
            stack,
            abandoned=settings.run.abandon_agent,
        )
        if settings.wait_for:
            await services.until_answering(settings.wait_for, settings.wait_s, report)
        yield service


async def _traces(options: TraceOptions, stack: AsyncExitStack) -> "Traces | None":
    """None: nothing is traced. Raises `ProRLError`."""
    url = options.url()
    if url is None or os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    try:
        from prorl_service.traces.export import Traces
    except ImportError as error:
        raise ProRLError(
            f"traces need what is not installed: {error}", hint="pip install 'prorl-service[otel]'"
        ) from error
    log.info("traces of rollouts go to %s", url)
    traces = Traces(url, options.otel_sample, has_content=options.otel_content)
    return await stack.enter_async_context(traces)


def _checked(engines: EngineOptions, reply_format: str | None) -> tuple[BackendSpec, ...]:
    """Raises `ProRLError` for a format or a tokenizer that does not exist."""
    specs = engines.specs()
    if reply_format is not None:
        formats.named(reply_format)
    for tokenizer in {spec.tokenizer for spec in specs} - {None}:
        ChatFormat.load(str(tokenizer), reply_format)
    return specs


def _sandboxes(options: SandboxOptions) -> WarmPool:
    budget_gb = options.image_budget_gb
    images = ImageOptions(
        root=options.image_cache,
        budget_bytes=None if budget_gb is None else int(budget_gb * 1e9),
        evict_one=lambda: sandboxes.evict_image(wait_s=ROOM_TIMEOUT_S),
        bases=options.image_base,
        build_network=not options.no_image_build_network,
    )
    provider = sandbox.provider(options.sandbox, default_image=options.default_image, images=images)
    sandboxes = WarmPool(provider, spares=options.warm_sandboxes)
    log.info("sandboxes: %s, up to %d of them warm", sandboxes.kind, options.warm_sandboxes)
    return sandboxes


@dataclass(frozen=True, slots=True)
class _Kept:
    """A run, and what outlives the process: its journal, and the files next to it."""

    run: str
    journal: Journal
    shelf: Shelf | None
    history: HistoryFile


async def _kept(options: RunOptions, stack: AsyncExitStack) -> _Kept:
    name, path = options.named()
    journal = Journal(path, options.retention)
    run = journal.claim(name, resume=options.resume)
    log.info("run %s, journal %s", run, path or "in memory")
    history = HistoryFile(path)
    stack.callback(history.close)
    shelf = Shelf.open(path, run, options.shelf)
    if shelf is not None:
        stack.callback(shelf.close)
        journal.follow(shelf)
    return _Kept(run, await stack.enter_async_context(journal), shelf, history)


async def _backends(journal: Journal, config: PoolConfig, stack: AsyncExitStack) -> BackendPool:
    text = await journal.read(tables.recall, WEIGHTS)
    policy = await journal.read(tables.recall, POLICY)
    directory = _weights_directory(journal.path, stack)
    return await stack.enter_async_context(
        BackendPool(
            directory,
            config,
            owner=journal.parsed(lambda: PolicyOwner(policy)),
            pushed=journal.parsed(lambda: PushedWeights.from_json(text, directory)),
            keep=lambda weights: journal.remember(WEIGHTS, weights.to_json()),
        )
    )


def _weights_directory(journal: Path | None, stack: AsyncExitStack) -> Path:
    """Returns the directory of weights, next to the journal, which knows what is in it."""
    if journal is not None:
        return journal.with_name(f"{journal.name}.weights")
    directory = files.temporary_directory("weights")
    stack.callback(shutil.rmtree, directory, ignore_errors=True)
    return directory


async def _started(
    kept: _Kept,
    backends: BackendPool,
    executor: RolloutExecutor,
    specs: tuple[BackendSpec, ...],
    stack: AsyncExitStack,
    *,
    abandoned: tuple[str, ...],
    sandboxes: WarmPool | None = None,
    mcp: McpServers | None = None,
    doors: Doors | None = None,
    nemo_gym: NemoGymServers | None = None,
) -> Service:
    run, journal = kept.run, kept.journal
    await check_unfinished(journal, executor.validator, abandoned)
    events = EventHub(run)
    executor.inflight.observers.add(events)
    backends.watch(lambda: _on_change(backends, kept.shelf, events))
    await stack.enter_async_context(executor)
    samplers = await stack.enter_async_context(SamplerManager(journal, executor, backends))
    for spec in specs:
        await backends.add(spec, must_answer=False)
    background = TaskOwner()
    stack.push_async_callback(background.close)
    background.start(watch_loop(), name="event loop lag")
    lists = Lists(run, executor, journal, kept.shelf)
    service = Service(
        run,
        journal,
        backends,
        executor,
        samplers,
        lists,
        Details(run, executor, journal, backends, lists),
        events,
        kept.history,
        background,
        sandboxes,
        mcp,
        doors,
        nemo_gym,
    )
    background.start(keep_samples(service), name="samples")
    return service


def _add_presets(presets: Iterable[Path]) -> None:
    """Raises `InvalidRequest` for a file that is no preset."""
    for file in presets:
        preset.add(file)


def _on_change(backends: BackendPool, shelf: Shelf | None, events: EventHub) -> None:
    """Passes on changes of the engines or their weights."""
    version, model = backends.policy_version, backends.model.current
    events.engines_are(backends.states(), version)
    if shelf is not None:
        shelf.set_now(Now(version, model.tokenizer_digest if model is not None else ""))


# --- what unfinished work needs ------------------------------------------------------------------


async def check_unfinished(
    journal: Journal, validator: Validator, abandoned: Collection[str]
) -> None:
    """Raises `ProRLError` that lists what this service lacks for rollouts of the journal and for
    candidates that wait in its samplers, except for those of `abandoned` agents: without it, a
    forgotten option would fail all rollouts that need it, for good."""
    wanted = list[tuple[Group, int]]()
    for unfinished in await journal.read(tables.unfinished):
        group = Group.model_validate_json(unfinished.request)
        wanted.append((group, group.n - len(unfinished.ended)))
    for sampler_id, _ in await journal.read(sampler_tables.samplers):
        for row in await journal.read(sampler_tables.candidates, sampler_id):
            if row.state is GroupState.WAITING and row.request is not None:
                group = Group.model_validate_json(row.request)
                wanted.append((group, group.n))
    needed = [(group, n) for group, n in wanted if group.task.agent not in abandoned]
    if problems := await asyncio.to_thread(_missing, validator, needed):
        raise _refusal(problems)


def _missing(
    validator: Validator, wanted: Collection[tuple[Group, int]]
) -> Counter[tuple[str, str, str]]:
    """Returns numbers of rollouts by agent, problem and cure."""
    missing = Counter[tuple[str, str, str]]()
    for group, n in wanted:
        for problem in validator.lacks(group):
            missing[group.task.agent, problem.message, problem.hint] += n
    return missing


def _refusal(missing: Counter[tuple[str, str, str]]) -> ProRLError:
    listed = [
        f"{n} rollouts of agent {agent!r}: {message} ({hint})"
        for (agent, message, hint), n in missing.most_common(MOST_LISTED)
    ]
    if len(missing) > MOST_LISTED:
        listed.append(f"{len(missing) - MOST_LISTED} more problems")
    agents = sorted({agent for agent, _, _ in missing})
    return ProRLError(
        f"the journal holds unfinished work that this service cannot do: {'; '.join(listed)}",
        hint="start it with what they need, or let them fail: "
        + " ".join(f"--abandon-agent {agent}" for agent in agents),
    )
