"""Membership of backends: they join, renew their leases, are probed, and leave.

A backend joins once it has answered a probe, or joins down. All backends have one owner. Each is
probed until it is removed or its lease expires, unless its owner reports its state: a front reports
the states of its engines to the services behind it, and they probe an engine only while their own
calls fail or stay without an answer. A backend that answers its probe is given the newest weights,
if it has others, and serves; one that does not answer is down until a probe succeeds.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from prorl_service.errors import Conflict, NotFound, OwnedByAnother
from prorl_service.inference.backend import Backend
from prorl_service.inference.connections import Connections
from prorl_service.inference.member import LENT, PoolMember
from prorl_service.inference.model import CurrentModel, OtherModel
from prorl_service.inference.routing import EngineLoad
from prorl_service.inference.weights.updates import WeightUpdates
from prorl_service.schemas import API_KIND, BackendSpec, BackendState, BackendStatus
from prorl_service.utils.leases import Lease
from prorl_service.utils.tasks import TaskOwner

log = logging.getLogger(__name__)


MISSED_PROBES = 2
"""Consecutive failed probes before a backend is marked down; one is enough if calls fail too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    probe_interval_s: PositiveFloat = 1.0
    """Seconds between probes of an engine."""
    probe_timeout_s: PositiveFloat = 10.0
    """Longest wait for the answer to a probe, in seconds."""
    wait_for_backend_s: NonNegativeFloat = 60.0
    """Longest wait of a model call while no engine is healthy, in seconds, updates not counted."""
    back_off_s: NonNegativeFloat = 10.0
    """Cool-down in seconds for an engine that passes its probes but fails every call."""
    load_weights_timeout_s: PositiveFloat = 600.0
    """Longest step of a weight update, and longest silence while weights are sent, in seconds."""
    upload_silence_s: PositiveFloat = 60.0
    """Longest pause within an upload of weights, in seconds."""
    max_calls_per_backend: PositiveInt = 256
    """Most model calls in flight at one engine; more wait here, where another engine may take
    them."""
    reply_format: str | None = None
    """Format of the model's reasoning and tool calls, such as 'hermes' (default: the format that
    its chat template writes; `prorl check-model` shows it)."""


class Membership:
    def __init__(
        self,
        members: dict[str, PoolMember],
        model: CurrentModel,
        updates: WeightUpdates,
        background: TaskOwner,
        connections: Connections,
        on_change: Callable[[], None],
        config: PoolConfig,
    ) -> None:
        """`members`, keyed by id, is changed here alone. `on_change` is called after each change of
        the members or their states."""
        self._members = members
        self._model = model
        self._updates = updates
        self._background = background
        self._connections = connections
        self._on_change = on_change
        self._config = config

    async def add(self, spec: BackendSpec, *, must_answer: bool) -> BackendStatus:
        """See `BackendPool.add`."""
        self.check_owner(spec.owner)
        self._check_training(spec.training)
        self._check_api(spec.kind)
        backend = Backend(spec.url, self._connections, spec.api_key, spec.kind, spec.model)
        member = PoolMember(backend, spec, EngineLoad(self._max_calls_of(spec)), self._on_change)
        while known := self._members.get(member.backend_id):
            if known.monitor is not None:
                self._renew(known, spec)
                return known.status()
            async with known.lock:  # wait for the call that is adding it
                pass
        self._members[member.backend_id] = member
        try:
            await self._revive(member)
        except BaseException as error:
            may_mend = isinstance(error, OtherModel) or getattr(error, "retryable", False)
            if must_answer or not may_mend:
                self._forget(member)
                raise
            member.mark_down(error)
        if not member.is_removed:
            name = f"monitor {member.backend_id}"
            member.monitor = self._background.start(self._monitor(member), name=name)
            self._renew(member, spec)
        return member.status()

    def check_owner(self, owner: str | None) -> None:
        """Raises `OwnedByAnother` if there are backends of another owner."""
        for member in self._members.values():
            if member.spec.owner != owner:
                raise OwnedByAnother(
                    f"it has engines of {owner_name(member.spec.owner)}: {member.backend_id}",
                    hint="a service works for one front at a time; stop the other front, then "
                    "remove its engines (`DELETE /v1/backends/ID`) or wait until their leases end",
                )

    def _check_training(self, training: str | None) -> None:
        """Raises `OwnedByAnother` for engines of which only some have their trainer's weights."""
        for member in self._members.values():
            if member.spec.training != training:
                raise OwnedByAnother(
                    f"it has other engines already: {member.backend_id}",
                    hint="engines that get their weights from their trainer sample alone: start a "
                    "service without --backend for each such training",
                )

    def _check_api(self, kind: str) -> None:
        """Raises `Conflict` for a model behind an API beside engines: its tokens are others."""
        for member in self._members.values():
            if (member.spec.kind == API_KIND) is not (kind == API_KIND):
                raise Conflict(
                    f"it has {member.backend_id} already: models behind an API and engines that "
                    "take tokens are not used together",
                    hint="start a service for each",
                )

    def remove(self, backend_id: str) -> BackendStatus:
        """Raises `NotFound`."""
        member = self._members.get(backend_id)
        if member is None:
            raise NotFound(
                f"there is no backend {backend_id!r}", hint="GET /v1/backends lists them"
            )
        self._forget(member)
        return member.status()

    def close(self) -> None:
        for member in self._members.values():
            member.end_lease()

    def _max_calls_of(self, spec: BackendSpec) -> int:
        return spec.max_calls or self._config.max_calls_per_backend

    def _renew(self, member: PoolMember, spec: BackendSpec) -> None:
        member.end_lease()
        member.lease = Lease(spec.lease_s, lambda: self._expired(member))
        if spec.api_key is None and spec.url == member.spec.url:
            spec = spec.model_copy(update={"api_key": member.spec.api_key})
        member.spec = spec
        member.backend.http.api_key, member.backend.kind = spec.api_key, spec.kind
        member.probe_now.set()  # it may have to serve with other weights
        member.load.max_calls = self._max_calls_of(spec)

    def _expired(self, member: PoolMember) -> None:
        text = "backend %s removed: it was not added again for %g s"
        log.warning(text, member.backend_id, member.spec.lease_s)
        self._forget(member)

    def _forget(self, member: PoolMember) -> None:
        """Removes the backend. Its calls in flight continue, unlike those of one marked down."""
        if member.is_removed:
            return
        del self._members[member.backend_id]
        member.is_removed = True
        member.state, member.reason = BackendState.DOWN, "removed"
        member.end_lease()
        if member.monitor is not None:
            self._background.cancel(member.monitor)
        self._model.leave(member.backend_id)
        self._on_change()

    # --- health ---------------------------------------------------------------------------------

    async def _monitor(self, member: PoolMember) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._config.probe_interval_s):
                    await member.probe_now.wait()
            member.probe_now.clear()
            try:
                report = member.spec.report
                if report is None or self._updates.wanted is not None or member.must_be_probed:
                    await self._revive(member)
                else:
                    member.follow(report)
                member.missed_probes = 0
            except Exception as error:  # a monitor must survive whatever its engine does
                member.missed_probes += 1
                # A busy engine may be late once; marking it down would lose its calls in flight.
                if member.is_calm and member.missed_probes < MISSED_PROBES:
                    member.freeze_calls()
                else:
                    member.mark_down(error)

    async def _revive(self, member: PoolMember) -> None:
        """Probes the backend and brings its model and weights in line. Afterwards the backend is
        healthy, lent, or being updated by others. Raises `ProRLError`."""
        async with member.lock:
            info = await member.probe(timeout_s=self._config.probe_timeout_s)
            await self._updates.check_model(member, info)
            model = await self._model.agree(
                member.backend_id, member.spec, info, lambda: not member.is_removed
            )
            member.backend.know(model.chat)
            await self._updates.bring_up_to_date(member, info)
            await member.check_logprobs()
            member.answered_at = asyncio.get_running_loop().time()
            member.check_calls(back_off_s=self._config.back_off_s)
            if member.is_lent:
                member.set_state(BackendState.UPDATING, LENT)
            elif self._updates.wanted is None and member.is_being_updated:
                member.set_state(BackendState.UPDATING)
            else:
                member.set_state(BackendState.HEALTHY)
            member.is_doubted = member.failed_calls > 0 or member.is_lent


def owner_name(owner: str | None) -> str:
    return "its own" if owner is None else f"front {owner!r}"
