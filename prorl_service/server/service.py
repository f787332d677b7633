"""The parts of a service that the routes use, and their injection."""

import asyncio
import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request, Response
from pydantic import BaseModel

from prorl_service import __version__
from prorl_service.errors import OwnedByAnother, PolicyTaken
from prorl_service.gateway.doors import Doors
from prorl_service.inference.membership import owner_name
from prorl_service.inference.pool import BackendPool
from prorl_service.rollouts.executor import RolloutExecutor
from prorl_service.rollouts.journal import Journal
from prorl_service.rollouts.journal.owner import POLICY
from prorl_service.sampling.manager import SamplerManager
from prorl_service.sandbox.warm_pool import WarmPool
from prorl_service.schemas import (
    BackendSpec,
    BackendStatus,
    Group,
    Invalid,
    OwnedBackends,
    PolicyClaim,
    PolicyLease,
    Rollout,
    SandboxCounts,
    ServiceStatus,
)
from prorl_service.schemas.history import TrainerStep
from prorl_service.schemas.training import Training
from prorl_service.server import watchdog
from prorl_service.shelf.details import Details
from prorl_service.shelf.events import EventHub
from prorl_service.shelf.history import HistoryFile
from prorl_service.shelf.lists import Lists
from prorl_service.tools.mcp.servers import McpServers
from prorl_service.tools.nemo_gym.servers import NemoGymServers
from prorl_service.utils.tasks import TaskOwner

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Service:
    run: str
    journal: Journal
    backends: BackendPool
    executor: RolloutExecutor
    samplers: SamplerManager
    lists: Lists
    details: Details
    events: EventHub
    history: HistoryFile
    background: TaskOwner
    sandboxes: WarmPool | None = None
    """Pool of sandboxes; None if other services run them."""
    mcp: McpServers | None = None
    doors: Doors | None = None
    nemo_gym: NemoGymServers | None = None
    started_at: float = field(default_factory=time.time)
    """Unix time in seconds."""

    def failure(self) -> str | None:
        """Returns why the service is not healthy; None if it is."""
        parts = (self.journal, self.executor, self.samplers, self.backends, self)
        servers = (part for part in (self.mcp, self.nemo_gym) if part is not None)
        owners = (part.background for part in (*parts, *servers))
        failures = (self.journal.death, *(owner.failure for owner in owners))
        return next(filter(None, failures), None)

    def status(self) -> ServiceStatus:
        """Returns what it does now. Reads counters and no more: it is asked for every second."""
        executor, model = self.executor, self.backends.model.current
        ends, failures = executor.inflight.ends, executor.inflight.failures
        shelf, sandboxes = self.lists.shelf, self.sandboxes
        return ServiceStatus(
            version=__version__,
            run=self.run,
            started_at=self.started_at,
            is_stopping=executor.is_stopping,
            failure=self.failure() or self.journal.failure,
            policy_version=self.backends.policy_version,
            training=self.backends.owner.lease(),
            refused_weights=self.backends.refused_weights,
            model=model.name if model else None,
            tokenizer_digest=model.tokenizer_digest if model else None,
            end_ids=sorted(model.chat.end_ids) if model else [],
            chat_template_digest=model.chat.template_digest if model else None,
            sandbox=sandboxes.kind if sandboxes else "elsewhere",
            sandboxes=SandboxCounts(**sandboxes.counts()) if sandboxes else None,
            agents=executor.agents.names,
            rollouts=executor.inflight.count_by_state(),
            ended=dict(ends),
            failures=dict(failures),
            queues=executor.queues(),
            workers=executor.workers(),
            running=executor.running(),
            backends=self.backends.statuses(),
            cache=self.backends.cache.status() if sandboxes else None,
            services=executor.services(),
            shelf=shelf.status() if shelf is not None else None,
            loop_lag_s=watchdog.recent_lag_s(),
        )

    def summary(self) -> str:
        """Returns what the service can do, for the log of its start."""
        model = self.backends.model.current
        serving = f"model {model.name}" if model else "no engine answers yet"
        return f"{serving}; agents: {', '.join(self.executor.agents.names)}"

    async def claim_policy(self, claim: PolicyClaim) -> PolicyLease:
        """Gives the policy to a training, and ends what it was for: rollouts, samplers and engines
        of the training that had it. Raises like `PolicyOwner.claim`, `NotTrainable` and
        `JournalError`."""
        self.backends.check_trainable()
        owner, key = self.backends.owner, claim.training.key
        if owner.claim(claim):
            await self.journal.remember(POLICY, owner.to_json())
            log.info("the policy belongs to training %s now", key)
            reason = PolicyTaken(f"the policy belongs to training {key} now").info()
            await self.executor.cancel_all_of_others(key, reason)
            await self.samplers.delete_all_of_others(key)
            await self.backends.remove_all_of_others(key)
        lease = owner.lease()
        assert lease is not None
        return lease

    async def release_policy(self, training: str) -> None:
        """Lets another training have the policy, if it is this one's. Raises `JournalError`."""
        owner = self.backends.owner
        if training == owner.key:
            owner.release()
            await self.journal.remember(POLICY, owner.to_json())

    async def training(
        self, run: str | None, agent: str | None, metrics: Collection[str]
    ) -> Training:
        """Returns what training got by policy version, and these of the trainer's own metrics.
        Raises `ShelfError`."""
        training = await self.lists.training(run, agent)
        found = await self.history.metrics(training.run, metrics)
        training.metric_names, training.metrics = found
        return training

    async def report_step(self, step: TrainerStep, training: str | None) -> None:
        """Keeps a trainer's metrics. Raises `PolicyTaken` if another training holds the policy."""
        if self.backends.owner.key is not None:
            self.backends.owner.check(training or "")
        version = step.policy_version
        if version is None:
            version = self.backends.policy_version
        await self.history.add_step(self.run, version, step)

    async def add_backend(self, spec: BackendSpec, *, must_answer: bool = True) -> BackendStatus:
        """See `BackendPool.add`. Raises `OwnedByAnother` while there are rollouts of another front,
        for which the engine must not sample; `PolicyTaken`, `PolicyUnclaimed`."""
        if spec.training is not None:
            self.backends.owner.check(spec.training)
        for owner in sorted(self.executor.inflight.owners() - {spec.owner}):
            raise OwnedByAnother(
                f"it has rollouts of {owner_name(owner)}",
                hint="a service works for one front at a time; those of a front that is gone are "
                "cancelled when their lease ends",
            )
        return await self.backends.add(spec, must_answer=must_answer)

    async def put_backends(self, wanted: OwnedBackends) -> list[BackendStatus]:
        """Adds these engines and removes the owner's others. Raises like `add_backend`."""
        specs = [one.model_copy(update={"owner": wanted.owner}) for one in wanted.backends]
        added = await asyncio.gather(*map(self.add_backend, specs), return_exceptions=True)
        for problem in added:
            if isinstance(problem, BaseException):
                raise problem
        ids = {one.backend_id for one in added if isinstance(one, BackendStatus)}
        for known in self.backends.statuses():
            if known.owner == wanted.owner and known.backend_id not in ids:
                await self.backends.remove(known.backend_id)
        return self.backends.statuses()

    async def submit(self, groups: Sequence[Group], invalid: Invalid = "refuse") -> list[Rollout]:
        """See `RolloutExecutor.submit`. Raises `OwnedByAnother` if the engines are of another owner
        than the groups."""
        for owner in {group.owner for group in groups} - {None}:
            self.backends.check_owner(owner)
        await self.details.find_starts(groups)
        return await self.executor.submit(groups, invalid)


def json_response(answer: BaseModel, status: int = 200) -> Response:
    """Builds the response here, since FastAPI would validate every row again."""
    return Response(answer.model_dump_json(), status, media_type="application/json")


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


ServiceDep = Annotated[Service, Depends(_service)]
