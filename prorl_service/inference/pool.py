"""The inference engines in use: which ones live, and what weights they have.

Where a call goes `routing` decides; `session` makes it, elsewhere if it fails. All backends serve
one model, which `served` knows. The pool keeps the newest weights, and a backend that comes back
(or joins) takes them before it serves: no rollout starts on weights older than the newest.
"""

import asyncio
import logging
from collections.abc import AsyncIterable, Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from prorl_service.background import Background
from prorl_service.errors import (
    BackendError,
    BackendRejected,
    BackendUnavailable,
    NotFound,
    ProRLError,
)
from prorl_service.inference.backend import Backend, EngineInfo, WeightFile
from prorl_service.inference.connections import Connections
from prorl_service.inference.member import Member
from prorl_service.inference.routing import Call, LeastTime, Load, Router
from prorl_service.inference.served import ModelInUse
from prorl_service.inference.session import Session
from prorl_service.inference.weights import Weights, WeightSpool, check_directory
from prorl_service.leases import Lease
from prorl_service.schemas import BackendSpec, BackendState, BackendStatus, WeightsReport

log = logging.getLogger(__name__)

RETRY_S = 0.5
"""Before a call is made again at the same backend; twice as long before the next time."""
MISSED_PROBES = 2
"""In a row, and a backend is down whose calls do not fail; one, if they do."""


@dataclass(frozen=True, slots=True)
class PoolConfig:
    probe_interval_s: float = 1.0
    probe_timeout_s: float = 10.0
    wait_for_backend_s: float = 60.0
    """How long a model call waits while no backend is healthy, updates not counted."""
    back_off_s: float = 10.0
    """How long a backend is left alone that answers its probes but fails every call."""
    load_weights_timeout_s: float = 600.0
    max_calls_per_backend: int = 256
    """In flight at once; what is more waits here, where it can still go elsewhere."""


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
        self.model = ModelInUse()
        self.background = Background()
        self._connections = Connections()
        self._members: dict[str, Member] = {}
        self._weights = newest
        self._keep = keep
        self._router = router or LeastTime()
        self._spool = WeightSpool(spool_directory)
        self._weights_lock = asyncio.Lock()
        self._changed = asyncio.Event()
        """Replaced at each change, so that all who wait for one look again."""

    async def __aenter__(self) -> "BackendPool":
        return self

    async def __aexit__(self, *_: object) -> None:
        for member in self._members.values():
            member.end_lease()
        await self.background.close()
        await self._connections.aclose()

    # --- membership -----------------------------------------------------------------------------

    @property
    def policy_version(self) -> int:
        """Of the weights pushed last. Until any are: the newest that a backend says it has, for
        some are updated by others; 0 if none says so."""
        if self._weights is not None:
            return self._weights.version
        members = self._members.values()
        return max((one.policy_version for one in members if one.loaded is None), default=0)

    def statuses(self) -> list[BackendStatus]:
        return [member.status() for member in self._members.values()]

    async def add(self, spec: BackendSpec, *, must_answer: bool = True) -> BackendStatus:
        """Idempotent: one that is known goes on, as `spec` says from now on, its lease renewed.
        Raises `BackendUnavailable`, `Conflict` (another model), `InvalidRequest`.

        With `must_answer=False` a backend that does not answer yet joins when it does.
        """
        backend = Backend(spec.url, self._connections)
        member = Member(backend, spec, Load(self._max_calls(spec)))
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
            if must_answer or not (isinstance(error, ProRLError) and error.retryable):
                self._forget(member)
                raise
            self._mark_down(member, error)
        if self._is_in_use(member):
            member.monitor = self.background.start(
                self._monitor(member), name=f"monitor {member.backend_id}"
            )
            self._renew(member, spec)
        return member.status()

    def offers(self) -> list[BackendSpec]:
        """Those that are not down, for services that leave the weights to this pool."""
        version = None if self._weights is None else self._weights.version
        up = (one for one in self._members.values() if one.state is not BackendState.DOWN)
        return [one.spec.model_copy(update={"policy_version": version}) for one in up]

    def _max_calls(self, spec: BackendSpec) -> int:
        return spec.max_calls or self.config.max_calls_per_backend

    def _renew(self, member: Member, spec: BackendSpec) -> None:
        member.end_lease()
        member.lease = Lease(spec.lease_s, lambda: self._expired(member))
        member.spec = spec
        member.suspect.set()  # it may have to serve with other weights
        member.traffic.max_calls = self._max_calls(spec)

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
        """Unlike `_set`, lets calls in flight go on."""
        if self._is_in_use(member):
            del self._members[member.backend_id]
        if member.monitor:
            self.background.cancel(member.monitor)
        member.end_lease()
        member.state, member.reason = BackendState.DOWN, "removed"
        self._forget_model()
        self._announce_change()

    def _forget_model(self) -> None:
        """If another may come; see `served`."""
        if not self._members and self._weights is None:
            self.model.forget()

    def _is_in_use(self, member: Member) -> bool:
        return self._members.get(member.backend_id) is member

    def _set(
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
        if state is BackendState.DOWN:
            member.fail_calls()
        self._announce_change()

    def _mark_down(self, member: Member, error: BaseException) -> None:
        if isinstance(error, ProRLError):
            reason = f"{error.message} ({error.hint})" if error.hint else error.message
            self._set(member, BackendState.DOWN, reason)
        else:
            self._set(member, BackendState.DOWN, repr(error), bug=error)

    def _announce_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def model_known(self) -> None:
        """Waits until there is one."""
        while self.model.current is None:
            await self._changed.wait()

    # --- routing --------------------------------------------------------------------------------

    @contextmanager
    def session(self, rollout_id: str) -> Iterator[Session]:
        """A generator for one rollout, of the model that is served now; leaving the context frees
        its pin. Raises `BackendUnavailable` while there is none."""
        model = self.model.require().name
        session = Session(rollout_id, partial(self._route, model), self._call_ended)
        try:
            yield session
        finally:
            session.unpin()

    async def _route(
        self, model: str, call: Call, pinned: Member | None, failed: Collection[Member]
    ) -> Member:
        """The member that is to serve the call, its work counted there.

        Waits while those that could are full. Raises `BackendUnavailable` when none becomes healthy
        within the budget, or those that do serve another model.
        """
        while True:
            candidates = await self._candidates(pinned, failed)
            self.model.require(model)
            loads = {member.backend_id: member.traffic for member in candidates}
            chosen = self._router.choose(call, loads)
            if chosen is not None:
                member = self._members[chosen]
                member.traffic.begin(call.work_at(chosen))
                return member
            await self._changed.wait()

    def _call_ended(self, call: Call, member: Member) -> None:
        member.traffic.end(call.work_at(member.backend_id))
        self._announce_change()

    async def _candidates(
        self, pinned: Member | None, failed: Collection[Member]
    ) -> Collection[Member]:
        """Those that can serve; of them, if possible, those whose last call did not fail."""
        loop = asyncio.get_running_loop()
        left_s = self.config.wait_for_backend_s
        while not (healthy := self._healthy()):
            updating = any(m.state is BackendState.UPDATING for m in self._members.values())
            asked_at = loop.time()
            try:
                async with asyncio.timeout(None if updating else left_s):
                    await self._changed.wait()
            except TimeoutError:
                raise self._nobody_healthy() from None
            if not updating:
                left_s -= loop.time() - asked_at
        proven = [m for m in healthy if m not in failed and (m is pinned or not m.failed_calls)]
        if not proven and failed:  # nobody but those: again, but not at once
            await asyncio.sleep(RETRY_S * len(failed))
        return proven or self._healthy() or await self._candidates(pinned, failed=())

    def _nobody_healthy(self) -> BackendUnavailable:
        reasons = "; ".join(f"{m.backend_id}: {m.reason}" for m in self._members.values())
        return BackendUnavailable(
            f"no backend was healthy for {self.config.wait_for_backend_s:g} s",
            hint=reasons or "there is none; POST one to /v1/backends",
        )

    def _healthy(self) -> list[Member]:
        return [member for member in self._members.values() if self._can_serve(member)]

    def _can_serve(self, member: Member) -> bool:
        return member.state is BackendState.HEALTHY and member.loaded is self._weights

    # --- weights --------------------------------------------------------------------------------

    async def stream_weights(self, chunks: AsyncIterable[bytes], version: int) -> WeightsReport:
        """Give all backends the tensors of one safetensors file. Raises as `load_weights`."""
        async with self._weights_lock:
            try:
                path = await self._spool.receive(chunks)
                return await self._load_everywhere(Weights(WeightFile(path), version))
            finally:
                await self._spool.keep_only(self._weights)

    async def load_weights(self, weights: Weights) -> WeightsReport:
        """Update all backends at once; one that is down takes the weights when it is back.

        Raises `BackendRejected` when a backend refuses them; `InvalidRequest` for a directory that
        is seen to hold none. After any error the weights before stay the newest: backends that took
        the new ones are given the old again, or, if there were none, are down until a restart.
        """
        await asyncio.to_thread(check_directory, weights.source)
        async with self._weights_lock:
            return await self._load_everywhere(weights)

    async def _load_everywhere(self, weights: Weights) -> WeightsReport:
        previous, self._weights = self._weights, weights
        try:
            members = list(self._members.values())
            results = await asyncio.gather(
                *(self._update(member, weights) for member in members), return_exceptions=True
            )
            for result in results:
                if result is not None and not isinstance(result, BackendUnavailable):
                    raise result
            await self._keep(weights)
        except BaseException:
            self._weights = previous
            raise
        finally:
            self._forget_model()
            self._announce_change()
        outcome = list(zip(members, results, strict=True))
        return WeightsReport(
            version=weights.version,
            applied=[member.backend_id for member, result in outcome if result is None],
            pending=[member.backend_id for member, result in outcome if result is not None],
        )

    async def _update(self, member: Member, weights: Weights) -> None:
        """Raises `BackendUnavailable` when the backend has to come back first."""
        async with member.lock:
            if member.state is BackendState.DOWN:
                raise BackendUnavailable(member.reason)
            try:
                await self._load(member, weights)
            except BackendRejected:
                self._set(member, BackendState.HEALTHY)
                raise
            except BaseException as error:
                self._mark_down(member, error)
                if isinstance(error, BackendError):
                    raise BackendUnavailable(error.message) from error
                raise
            self._set(member, BackendState.HEALTHY)

    async def _load(self, member: Member, weights: Weights) -> None:
        self._set(member, BackendState.UPDATING, member.reason)
        await member.load(weights, timeout_s=self.config.load_weights_timeout_s)

    # --- health ---------------------------------------------------------------------------------

    async def _monitor(self, member: Member) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.config.probe_interval_s):
                    await member.suspect.wait()
            member.suspect.clear()
            try:
                await self._revive(member)
                member.missed_probes = 0
            except Exception as error:  # a monitor must survive whatever its engine does
                member.missed_probes += 1
                # A busy engine may be late once; its calls in flight would be lost.
                if not (member.is_calm and member.missed_probes < MISSED_PROBES):
                    self._mark_down(member, error)

    async def _revive(self, member: Member) -> None:
        """Probe; bring model and weights in line; healthy when it returns, or updated by others."""
        async with member.lock:
            info = await member.probe(timeout_s=self.config.probe_timeout_s)
            is_in_use = partial(self._is_in_use, member)
            model = await self.model.agree(member.spec, info, is_in_use)
            if model.chat.vocab_size is not None:
                member.backend.vocab_size = model.chat.vocab_size
            await self._bring_up_to_date(member, info)
            member.check_calls(back_off_s=self.config.back_off_s)
            is_awaited = self._weights is None and member.is_being_updated
            self._set(member, BackendState.UPDATING if is_awaited else BackendState.HEALTHY)

    async def _bring_up_to_date(self, member: Member, info: EngineInfo) -> None:
        """A paused engine may have lost its weights in an update; only a new update resumes it."""
        if self._weights is not None:
            if member.loaded is not self._weights:
                await self._load(member, self._weights)
        elif member.loaded is not None:
            raise BackendUnavailable(
                f"{member.spec.url} took version {member.loaded.version}, which was not accepted",
                hint="restart the inference engine, or give new weights",
            )
        elif info.is_paused and member.spec.policy_version is None:
            raise BackendUnavailable(f"{member.spec.url} is paused", hint="resume or restart it")
