"""The pool's record of one inference engine: its state, its weights, its calls.

Holds no rules of the pool: `membership` and `updates` decide its state, `dispatch` its calls.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

from prorl_service.errors import (
    BackendBusy,
    BackendError,
    BackendLent,
    BackendRejected,
    BackendUnavailable,
    ProRLError,
)
from prorl_service.inference.backend import Backend
from prorl_service.inference.base import Generation
from prorl_service.inference.cache_budget import EngineCache
from prorl_service.inference.engines import routers
from prorl_service.inference.engines.base import EngineInfo
from prorl_service.inference.engines.versions import NEVER_UPDATED, is_marked
from prorl_service.inference.pushed import NumberedWeights
from prorl_service.inference.routing import EngineLoad
from prorl_service.schemas import (
    BackendSpec,
    BackendState,
    BackendStatus,
    EngineGauges,
    EngineReport,
)
from prorl_service.utils.budget import WorkClock
from prorl_service.utils.leases import Lease

log = logging.getLogger(__name__)

MAX_FAILED_CALLS = 5
"""Consecutive failed calls after which a backend is down even if it reports healthy."""

LENT = "its owner uses it for something else"
SILENCE_S = 10.0
"""Seconds without an answer, while calls are in flight, after which an engine is probed whatever
its owner reports."""


class AwaitsWeights(BackendUnavailable):
    """The engine answers, but has no weights to serve with until the next update."""


class ForeignWeights(BackendUnavailable):
    """Another service gave the engine weights: it samples from a policy that is not ours."""


@dataclass(slots=True, eq=False)
class CallInFlight:
    clock: WorkClock
    """Clock of the caller, stopped while the backend samples nothing."""
    until_down: asyncio.Timeout = field(default_factory=lambda: asyncio.timeout(None))
    """Timeout that expires when the backend goes down."""
    is_frozen: bool = False

    def freeze(self) -> None:
        if not self.is_frozen:
            self.is_frozen = True
            self.clock.stop()

    def thaw(self) -> None:
        if self.is_frozen:
            self.is_frozen = False
            self.clock.start()


@dataclass(slots=True)
class PoolMember:
    backend: Backend
    spec: BackendSpec
    load: EngineLoad
    """Load and speed, for the router."""
    on_change: Callable[[], None]
    """Callback after each change of the state."""
    is_removed: bool = False
    """True once the backend has left the pool; its state is then final."""
    info: EngineInfo | None = None
    cache: EngineCache = field(default_factory=EngineCache)
    awaits_weights: bool = False
    """True while the backend is down for lack of weights alone."""
    labels: set[str] = field(default_factory=set)
    """Labels of the weights that the engine brought along, or that the pool gave it."""
    loaded: NumberedWeights | None = None
    """Weights from the pool that the engine holds; None: those that it brought along."""
    state: BackendState = BackendState.DOWN
    reason: str = "not reached yet"
    missed_probes: int = 0
    """Consecutive failed probes."""
    is_doubted: bool = True
    """True while only a probe can tell the state, whatever the owner reports."""
    answered_at: float = 0.0
    """Time of the loop at which the engine last answered a call or a probe."""
    failed_calls: int = 0
    """Consecutive failed calls; forgotten some time after the last."""
    last_failure: str = ""
    last_failure_at: float = 0.0
    monitor: asyncio.Task[None] | None = None
    lease: Lease | None = None
    """Lease that begins when the backend has joined."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the backend is probed or given weights."""
    probe_now: asyncio.Event = field(default_factory=asyncio.Event)
    """Event on which the monitor probes immediately, such as a failed call."""
    calls: set[CallInFlight] = field(default_factory=set)
    prompt_tokens: int = 0
    """Prompt tokens of all calls that were answered."""
    cached_tokens: int = 0
    sampled_tokens: int = 0

    @property
    def backend_id(self) -> str:
        return self.backend.backend_id

    @property
    def policy_version(self) -> int:
        """Version of the engine's weights, as last reported; 0 if there was none."""
        return (self.info.policy_version if self.info else None) or 0

    @property
    def context(self) -> int:
        """Tokens of prompt and reply that the engine takes."""
        return self.info.max_model_len if self.info else 0

    def status(self) -> BackendStatus:
        return BackendStatus(
            backend_id=self.backend_id,
            url=self.spec.url,
            model=self.info.model if self.info else "",
            state=self.state,
            policy_version=self.policy_version,
            max_model_len=self.context,
            in_flight=self.load.calls,
            max_calls=self.load.max_calls,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            sampled_tokens=self.sampled_tokens,
            sessions=self.load.sessions,
            gauges=self.cache.gauges,
            reason=self.reason,
            owner=self.spec.owner,
            training=self.spec.training,
        )

    def report(self, services: int) -> EngineReport:
        """Returns what the services behind this one, so many, need not ask the engine."""
        version = self.info.policy_version if self.info else None
        tokens = None if self.cache.gauges is None else self.cache.gauges.kv_tokens
        return EngineReport(
            state=self.state,
            policy_version=version,
            reason=self.reason,
            kv_tokens=tokens and tokens // max(1, services),
        )

    @property
    def must_be_probed(self) -> bool:
        """True unless what its owner reports, if anything, says all that a probe would."""
        report = self.spec.report
        if report is None or self.backend.engine.needs_probes:
            return True
        if report.state is not BackendState.HEALTHY:
            return False
        now = asyncio.get_running_loop().time()
        is_doubted = self.is_doubted or self.backend.logprobs_mode is None
        return is_doubted or (bool(self.calls) and now >= self.answered_at + SILENCE_S)

    def _observe(self, gauges: EngineGauges | None) -> None:
        """Notes the load of the engine. What its owner reports counts more: the part of its cache
        that this service may fill."""
        report = self.spec.report
        self.cache.observe(gauges if report is None else EngineGauges(kv_tokens=report.kv_tokens))

    def follow(self, report: EngineReport) -> None:
        """Takes over the state that the owner reports."""
        self._observe(None)
        if self.info is not None:
            version = report.policy_version
            label = NEVER_UPDATED if version is None else str(version)
            self.info = replace(self.info, label=label, is_paused=False)
        if report.state is BackendState.DOWN:
            self.mark_down(BackendUnavailable(report.reason))
        elif self.is_being_updated:
            self.set_state(BackendState.UPDATING, report.reason)
        else:
            self.set_state(report.state, report.reason)

    def set_state(
        self, state: BackendState, reason: str = "", bug: BaseException | None = None
    ) -> None:
        """Changes the state. Nothing else changes that of a backend in use."""
        if self.is_removed:
            return
        if reason != self.reason:
            level = logging.WARNING if state is BackendState.DOWN else logging.INFO
            text = "backend %s is %s %s"
            log.log(level, text, self.backend_id, state.value, reason, exc_info=bug)
        self.state, self.reason = state, reason
        match state:
            case BackendState.DOWN:
                self._fail_calls()
                self.backend.forget_intake()
            case BackendState.UPDATING:
                self.freeze_calls()
            case BackendState.HEALTHY:
                self._thaw_calls()
        self.on_change()

    def mark_down(self, error: BaseException) -> None:
        self.is_doubted = True
        self.awaits_weights = isinstance(error, AwaitsWeights)
        if isinstance(error, ProRLError):
            reason = f"{error.message} ({error.hint})" if error.hint else error.message
            self.set_state(BackendState.DOWN, reason)
        else:
            self.set_state(BackendState.DOWN, repr(error), bug=error)

    async def probe(self, *, timeout_s: float) -> EngineInfo:
        """Raises `BackendError`: `ForeignWeights` if another service updated the engine since it
        joined. Resets `loaded` if the engine has lost the weights."""
        is_new = self.info is None
        if is_new:
            await self.backend.refuse_router(timeout_s=timeout_s)
        if not await self.backend.is_healthy(timeout_s=timeout_s):
            raise BackendUnavailable(
                f"{self.spec.url} does not answer /health",
                hint="is the inference engine running and reachable from the service?",
            )
        info = await self.backend.describe(timeout_s=timeout_s)
        asks = routers.ANSWERS if is_new else 1
        self._observe(await self.backend.load(timeout_s=timeout_s, asks=asks))
        if is_new:
            self.labels.add(info.label)
        self.info = info
        self._refuse_foreign({info.label})
        if self.spec.policy_version is not None and (needed := self.info.needs_for_label):
            raise BackendRejected(f"{self.spec.url} is updated by others: that needs {needed}")
        await self.backend.check_logprobs(self.info, may_probe=False)
        is_other = self.loaded is not None and self.info.label != self.loaded.label
        if is_other or self.info.is_paused:  # a paused engine may have lost its weights
            self.loaded = None
        return self.info

    async def load_weights(self, weights: NumberedWeights, *, timeout_s: float) -> None:
        """Raises `BackendError`; after `BackendRejected` the engine still has its old weights."""
        assert self.info is not None
        held, self.loaded = self.loaded, None
        self.labels.add(weights.label)
        try:
            await self.backend.load_weights(weights.source, weights.label, timeout_s=timeout_s)
        except BackendRejected:
            self.loaded = held
            raise
        self.loaded = weights
        self.info = await self.backend.describe(timeout_s=timeout_s)  # adapters come and go
        self._refuse_foreign({self.info.label})

    def _refuse_foreign(self, labels: Collection[str]) -> None:
        """Raises `ForeignWeights`. Its owner may update it."""
        if self.spec.owner is not None or self.spec.policy_version is not None:
            return
        if others := sorted(one for one in labels if is_marked(one) and one not in self.labels):
            raise ForeignWeights(
                f"{self.spec.url} was given weights by another service (version {others[-1]})",
                hint="give each service engines of its own, then restart this one, or remove and "
                "add it again",
            )

    @property
    def is_lent(self) -> bool:
        return self.info is not None and self.info.is_lent

    @property
    def is_being_updated(self) -> bool:
        """True while others update the engine; see `BackendSpec.policy_version`."""
        wanted, info = self.spec.policy_version, self.info
        return (
            wanted is not None
            and info is not None
            and (info.is_paused or self.policy_version != wanted)
        )

    async def check_logprobs(self) -> None:
        """See `Backend.check_logprobs`; an engine that does not sample now is asked later."""
        assert self.info is not None
        may_probe = not (self.info.is_paused or self.is_being_updated)
        await self.backend.check_logprobs(self.info, may_probe=may_probe)

    @property
    def is_calm(self) -> bool:
        """True if the backend serves and its last call did not fail."""
        return self.state is BackendState.HEALTHY and not self.failed_calls

    async def call(
        self, generate: Coroutine[Any, Any, Generation], *, prompt_tokens: int, clock: WorkClock
    ) -> Generation:
        """Raises `BackendError`: `BackendUnavailable` as soon as the backend goes down.

        Refunds the cost of a failed call to the caller's `clock`.
        """
        began_s, version = clock.worked_s, self.policy_version
        try:
            generation = await self._until_down(generate, clock)
            if generation.finish_reason == "abort":
                raise BackendError(f"{self.backend_id} aborted the call")
            if min(generation.policy_versions, default=version) < self._at_least(version):
                raise BackendUnavailable(f"{self.backend_id} was restarted: its weights are gone")
            self._refuse_foreign(generation.labels)
        except BackendLent:
            clock.refund(began_s)
            self._note_loan()
            raise
        except BackendBusy:  # it serves; others' calls need not know
            clock.refund(began_s)
            raise
        except BackendError as error:
            clock.refund(began_s)
            # An update may abort calls; it reports its own errors.
            if error.retryable and self.state is BackendState.HEALTHY:
                self._note_failure(error)
            raise
        self.failed_calls = 0
        self.answered_at = asyncio.get_running_loop().time()
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += generation.cached_tokens
        self.sampled_tokens += len(generation.token_ids)
        self.load.learn(
            sampled=len(generation.token_ids),
            uncached=prompt_tokens - generation.cached_tokens,
            took_s=clock.worked_s - began_s,
        )
        return generation

    def _at_least(self, version: int) -> int:
        """Returns the oldest version that a call begun with `version` may have sampled with: an
        older one after weights were withdrawn."""
        return version if self.loaded is None else min(version, self.loaded.version)

    async def _until_down(
        self, generate: Coroutine[Any, Any, Generation], clock: WorkClock
    ) -> Generation:
        call = CallInFlight(clock)
        try:
            async with call.until_down:
                self.calls.add(call)
                return await generate
        except TimeoutError:
            if not call.until_down.expired():
                raise
            raise BackendUnavailable(self.reason) from None
        finally:
            self.calls.discard(call)
            call.thaw()

    def end_lease(self) -> None:
        if self.lease is not None:
            self.lease.end()

    def _fail_calls(self) -> None:
        """Fails calls in flight with the reason why the backend is down."""
        now = asyncio.get_running_loop().time()
        while self.calls:
            self.calls.pop().until_down.reschedule(now)

    def freeze_calls(self) -> None:
        """Stops the clocks of calls in flight: nothing is sampled for them now."""
        for call in self.calls:
            call.freeze()

    def _thaw_calls(self) -> None:
        for call in self.calls:
            call.thaw()

    def _note_loan(self) -> None:
        """Marks the backend as lent until a probe says otherwise."""
        self.is_doubted = True
        if self.info is not None:
            self.info = replace(self.info, is_lent=True)
        if self.state is BackendState.HEALTHY:
            self.set_state(BackendState.UPDATING, LENT)

    def _note_failure(self, error: BackendError) -> None:
        self.failed_calls += 1
        self.is_doubted = True
        self.last_failure = error.message
        self.last_failure_at = asyncio.get_running_loop().time()
        self.probe_now.set()

    def check_calls(self, *, back_off_s: float) -> None:
        """Raises `BackendUnavailable` for `back_off_s` after too many consecutive failed calls."""
        if asyncio.get_running_loop().time() >= self.last_failure_at + back_off_s:
            self.failed_calls = 0
        if self.failed_calls >= MAX_FAILED_CALLS:
            raise BackendUnavailable(
                f"{self.failed_calls} calls in a row failed, the last with: {self.last_failure}"
            )
