"""The inference engines in use: which ones live, and what weights they have.

Where a call goes `dispatch` decides; `session` makes it, elsewhere if it fails. All backends serve
one model, which `served` knows, and have the newest weights, by `updates`, before they serve: no
rollout starts on older ones.
"""

import asyncio
import logging
from collections.abc import AsyncIterable, Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from prorl_service.errors import NotFound, OwnedByAnother, ProRLError
from prorl_service.inference.backend import Backend
from prorl_service.inference.connections import Connections
from prorl_service.inference.dispatch import Dispatch
from prorl_service.inference.identity import OtherModel
from prorl_service.inference.member import AwaitsWeights, Member
from prorl_service.inference.model import CurrentModel
from prorl_service.inference.routing import EngineLoad, LeastExpectedTime, Router, RouteRequest
from prorl_service.inference.session import Session
from prorl_service.inference.updates.nccl import NcclGroup
from prorl_service.inference.updates.updates import WeightUpdates
from prorl_service.inference.weights import Weights, WeightSpool
from prorl_service.schemas import (
    BackendSpec,
    BackendState,
    BackendStatus,
    WeightsQuery,
    WeightsReport,
    WeightsTerms,
)
from prorl_service.utils.budget import WorkClock
from prorl_service.utils.leases import Lease
from prorl_service.utils.tasks import TaskOwner

log = logging.getLogger(__name__)

LENT = "its owner uses it for something else"
MISSED_PROBES = 2
"""In a row, and a backend is down whose calls do not fail; one, if they do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    probe_interval_s: PositiveFloat = 1.0
    """Seconds between probes of an engine."""
    probe_timeout_s: PositiveFloat = 10.0
    """Longest answer to a probe, in seconds."""
    wait_for_backend_s: NonNegativeFloat = 60.0
    """Longest wait of a model call while no engine is healthy, in seconds, updates not counted."""
    back_off_s: NonNegativeFloat = 10.0
    """Cool-down in seconds for an engine that passes its probes but fails every call."""
    load_weights_timeout_s: PositiveFloat = 600.0
    """Longest step of an update of weights, and longest silence while they are sent, in seconds."""
    upload_silence_s: PositiveFloat = 60.0
    """Longest pause within an upload of weights, in seconds."""
    max_calls_per_backend: PositiveInt = 256
    """Most model calls in flight at one engine; more wait here, where another may take them."""
    reply_format: str | None = None
    """Format of the model's reasoning and tool calls, such as 'hermes' (default: the format that
    its chat template writes; `prorl check-model` shows it)."""


async def _forget_weights(_: Weights) -> None: ...


class BackendPool:
    """`async with BackendPool(...)`; closing it stops the monitors and closes the connections."""

    def __init__(
        self,
        spool_directory: Path,
        config: PoolConfig = PoolConfig(),
        *,
        newest: Weights | None = None,
        keep: Callable[[Weights], Awaitable[None]] = _forget_weights,
        router: Router | None = None,
    ) -> None:
        """`newest`: what backends are to be given before they serve. `keep` is told of each that
        takes its place, before any file of the one before is removed."""
        self.config = config
        self.model = CurrentModel(self._problems, config.reply_format)
        self.background = TaskOwner()
        self._connections = Connections()
        self._members: dict[str, Member] = {}
        self._spool = WeightSpool(spool_directory, silence_s=config.upload_silence_s)
        self._updates = WeightUpdates(
            self, self._spool, newest, keep, config.load_weights_timeout_s
        )
        self._dispatch = Dispatch(
            self._members,
            self._can_serve,
            self.model,
            router or LeastExpectedTime(),
            wait_s=config.wait_for_backend_s,
        )

    async def __aenter__(self) -> "BackendPool":
        await asyncio.to_thread(self._spool.open, self._updates.newest)
        return self

    async def __aexit__(self, *_: object) -> None:
        for member in self._members.values():
            member.end_lease()
        await self.background.close()
        await self._connections.aclose()
        await asyncio.to_thread(self._spool.close, self._updates.newest)

    # --- membership -----------------------------------------------------------------------------

    @property
    def policy_version(self) -> int:
        """Of the weights pushed last. Until any are: the newest that a backend says it has, for
        some are updated by others; 0 if none says so."""
        if self._updates.newest is not None:
            return self._updates.newest.version
        members = self._members.values()
        return max((one.policy_version for one in members if one.loaded is None), default=0)

    @property
    def pushed_version(self) -> int | None:
        """Version of the weights pushed last; None if there were none."""
        return None if self._updates.newest is None else self._updates.newest.version

    def statuses(self) -> list[BackendStatus]:
        return [member.status() for member in self._members.values()]

    async def add(self, spec: BackendSpec, *, must_answer: bool = True) -> BackendStatus:
        """Idempotent: one that is known goes on, as `spec` says from now on, its lease renewed.
        Raises `BackendUnavailable`, `Conflict` (another model), `OwnedByAnother`, `InvalidRequest`.

        With `must_answer=False` a backend that does not answer yet, or serves a model that the
        newest weights are not of, joins when it does.
        """
        self.check_owner(spec.owner)
        backend = Backend(spec.url, self._connections, spec.api_key)
        member = Member(backend, spec, EngineLoad(self._max_calls(spec)))
        while known := self._members.get(member.backend_id):
            if known.monitor is not None:
                self._renew(known, spec)
                return known.status()
            async with known.lock:  # until the call that adds it is through
                pass
        self._members[member.backend_id] = member
        try:
            await self._revive(member)
        except BaseException as error:
            may_mend = isinstance(error, OtherModel) or getattr(error, "retryable", False)
            if must_answer or not may_mend:
                self._forget(member)
                raise
            self.mark_down(member, error)
        if self._is_in_use(member):
            member.monitor = self.background.start(
                self._monitor(member), name=f"monitor {member.backend_id}"
            )
            self._renew(member, spec)
        return member.status()

    def check_owner(self, owner: str | None) -> None:
        """Raises `OwnedByAnother` if there are engines of another."""
        for member in self._members.values():
            if member.spec.owner != owner:
                raise OwnedByAnother(
                    f"it has engines of {owner_name(member.spec.owner)}: {member.backend_id}",
                    hint="a service works for one front at a time; stop the other front, then "
                    "remove its engines (`DELETE /v1/backends/ID`) or wait until their lease ends",
                )

    def offers(self) -> list[BackendSpec]:
        """Those that are not down, for services that leave the weights to this pool."""
        version = None if self._updates.newest is None else self._updates.newest.version
        up = (one for one in self._members.values() if one.state is not BackendState.DOWN)
        return [one.spec.model_copy(update={"policy_version": version}) for one in up]

    def _max_calls(self, spec: BackendSpec) -> int:
        return spec.max_calls or self.config.max_calls_per_backend

    def _renew(self, member: Member, spec: BackendSpec) -> None:
        member.end_lease()
        member.lease = Lease(spec.lease_s, lambda: self._expired(member))
        if spec.api_key is None and spec.url == member.spec.url:
            spec = spec.model_copy(update={"api_key": member.spec.api_key})
        member.spec = spec
        member.backend.api_key = spec.api_key
        member.probe_now.set()  # it may have to serve with other weights
        member.load.max_calls = self._max_calls(spec)

    def _expired(self, member: Member) -> None:
        text = "backend %s is removed: nobody added it again for %g s"
        log.warning(text, member.backend_id, member.spec.lease_s)
        self._forget(member)

    async def remove(self, backend_id: str) -> BackendStatus:
        """Calls in flight there end as they will. Raises `NotFound`."""
        member = self._members.get(backend_id)
        if member is None:
            raise NotFound(
                f"there is no backend {backend_id!r}", hint="GET /v1/backends lists them"
            )
        self._forget(member)
        return member.status()

    def _forget(self, member: Member) -> None:
        """Removes the backend; unlike with `set_state`, calls in flight continue."""
        if self._is_in_use(member):
            del self._members[member.backend_id]
        if member.monitor:
            self.background.cancel(member.monitor)
        member.end_lease()
        member.state, member.reason = BackendState.DOWN, "removed"
        self.model.leave(member.backend_id)
        self._forget_model()
        self._dispatch.announce_change()

    def _forget_model(self) -> None:
        """If another may come; see `served`."""
        if not self._members and self._updates.newest is None:
            self.model.forget()

    def _is_in_use(self, member: Member) -> bool:
        return self._members.get(member.backend_id) is member

    def set_state(
        self,
        member: Member,
        state: BackendState,
        reason: str = "",
        bug: BaseException | None = None,
    ) -> None:
        """The one place where a backend in use changes its state."""
        if not self._is_in_use(member):
            return
        if reason != member.reason:
            level = logging.WARNING if state is BackendState.DOWN else logging.INFO
            text = "backend %s is %s %s"
            log.log(level, text, member.backend_id, state.value, reason, exc_info=bug)
        member.state, member.reason = state, reason
        match state:
            case BackendState.DOWN:
                member.fail_calls()
                member.backend.forget_intake()
            case BackendState.UPDATING:
                member.freeze_calls()
            case BackendState.HEALTHY:
                member.thaw_calls()
        self._dispatch.announce_change()

    def mark_down(self, member: Member, error: BaseException) -> None:
        member.awaits_weights = isinstance(error, AwaitsWeights)
        if isinstance(error, ProRLError):
            reason = f"{error.message} ({error.hint})" if error.hint else error.message
            self.set_state(member, BackendState.DOWN, reason)
        else:
            self.set_state(member, BackendState.DOWN, repr(error), bug=error)

    async def until_up(self) -> None:
        """Waits until a model is known, and an engine of it serves or will do so without help."""
        while self.model.current is None or not any(
            member.state is not BackendState.DOWN for member in self._members.values()
        ):
            await self._dispatch.changes.wait()

    async def until_serving(self) -> None:
        """Waits until an engine can take a call."""
        while not self._dispatch.healthy():
            await self._dispatch.changes.wait()

    # --- routing --------------------------------------------------------------------------------

    @contextmanager
    def session(self, rollout_id: str, clock: WorkClock | None = None) -> Iterator[Session]:
        """A generator for one rollout, of the model that is served now; leaving the context frees
        its pin. `clock` counts the rollout's work. Raises `BackendUnavailable` while there is no
        model."""
        model = self.model.require().name
        clock = clock or WorkClock()
        session = Session(rollout_id, clock, partial(self._dispatch.route, model), self._call_ended)
        try:
            yield session
        finally:
            session.unpin()

    def _call_ended(self, call: RouteRequest, member: Member) -> None:
        if member.is_lent and member.state is BackendState.HEALTHY:
            self.set_state(member, BackendState.UPDATING, LENT)
        self._dispatch.end(call, member)

    def _problems(self) -> str:
        return "; ".join(f"{m.backend_id}: {m.reason}" for m in self._members.values())

    def _can_serve(self, member: Member) -> bool:
        return member.state is BackendState.HEALTHY and member.loaded is self._updates.newest

    # --- weights --------------------------------------------------------------------------------

    async def weights_terms(self, query: WeightsQuery) -> WeightsTerms:
        """See `terms.agree`; with the place where trainers may leave files."""
        agreed = await self._updates.terms(query)
        place = {"directory": str(self._spool.directory), "probe": self._spool.probe}
        return agreed.model_copy(update=place)

    async def stream_weights(
        self, chunks: AsyncIterable[bytes], version: int, *, rewind: bool = False
    ) -> WeightsReport:
        """See `WeightUpdates.stream`."""
        return await self._updates.stream(chunks, version, rewind=rewind)

    async def load_weights(self, weights: Weights, *, rewind: bool = False) -> WeightsReport:
        """See `WeightUpdates.load`."""
        return await self._updates.load(weights, rewind=rewind)

    async def open_group(self, init_info: Mapping[str, Any]) -> NcclGroup:
        """See `WeightUpdates.open_group`."""
        return await self._updates.open_group(init_info)

    async def broadcast(
        self, group_id: str, manifest: Mapping[str, Any], version: int, *, rewind: bool = False
    ) -> WeightsReport:
        """See `WeightUpdates.broadcast`."""
        return await self._updates.broadcast(group_id, manifest, version, rewind=rewind)

    def members(self) -> Collection[Member]:
        return self._members.values()

    def on_weights(self) -> None:
        self._forget_model()
        self._dispatch.announce_change()

    # --- health ---------------------------------------------------------------------------------

    async def _monitor(self, member: Member) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.config.probe_interval_s):
                    await member.probe_now.wait()
            member.probe_now.clear()
            try:
                await self._revive(member)
                member.missed_probes = 0
            except Exception as error:  # a monitor must survive whatever its engine does
                member.missed_probes += 1
                # A busy engine may be late once; its calls in flight would be lost.
                if member.is_calm and member.missed_probes < MISSED_PROBES:
                    member.freeze_calls()
                else:
                    self.mark_down(member, error)

    async def _revive(self, member: Member) -> None:
        """Probe; bring model and weights in line; healthy when it returns, or updated by others."""
        async with member.lock:
            info = await member.probe(timeout_s=self.config.probe_timeout_s)
            await self._updates.check_model(member, info)
            is_in_use = partial(self._is_in_use, member)
            model = await self.model.agree(member.backend_id, member.spec, info, is_in_use)
            if model.chat.vocab_size is not None:
                member.backend.vocab_size = model.chat.vocab_size
            await self._updates.bring_up_to_date(member, info)
            member.check_calls(back_off_s=self.config.back_off_s)
            if member.is_lent:
                self.set_state(member, BackendState.UPDATING, LENT)
            elif self._updates.newest is None and member.is_being_updated:
                self.set_state(member, BackendState.UPDATING)
            else:
                self.set_state(member, BackendState.HEALTHY)


def owner_name(owner: str | None) -> str:
    return "its own" if owner is None else f"front {owner!r}"
