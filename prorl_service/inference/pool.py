"""The inference engines in use: which one a rollout gets, which ones live, what weights they have.

A rollout is pinned to the healthy backend of fewest pinned rollouts at its first call and stays
there, so that its prefix cache is reused. All backends serve one model. The pool keeps the newest
weights, and a backend that comes back (or joins) takes them before it serves: no rollout starts on
weights older than the newest. A failed call is not tried again; that is the caller's decision.
"""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from prorl_service.background import Background
from prorl_service.errors import (
    BackendError,
    BackendRejected,
    BackendUnavailable,
    Conflict,
    InvalidRequest,
    NotFound,
    ProRLError,
)
from prorl_service.inference.backend import (
    Backend,
    EngineInfo,
    WeightDirectory,
    WeightFile,
    WeightSource,
    open_session,
)
from prorl_service.inference.base import Generation
from prorl_service.inference.weights import Weights, WeightSpool
from prorl_service.schemas import (
    BackendSpec,
    BackendState,
    BackendStatus,
    Sampling,
    WeightsReport,
)
from prorl_service.tokens.chat import ChatFormat

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PoolConfig:
    probe_interval_s: float = 1.0
    probe_timeout_s: float = 10.0
    wait_for_backend_s: float = 60.0
    """How long a model call waits while no backend is healthy."""
    load_weights_timeout_s: float = 600.0


@dataclass(frozen=True, slots=True)
class ServedModel:
    name: str
    chat: ChatFormat
    max_model_len: int


@dataclass(slots=True)
class _Member:
    backend: Backend
    spec: BackendSpec
    info: EngineInfo | None = None
    state: BackendState = BackendState.DOWN
    reason: str = "not reached yet"
    pinned: int = 0
    in_flight: int = 0
    monitor: asyncio.Task[None] | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the backend is probed or given weights."""
    suspect: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by a failed call, so that the monitor looks at once."""

    @property
    def backend_id(self) -> str:
        return self.backend.backend_id

    def status(self) -> BackendStatus:
        return BackendStatus(
            backend_id=self.backend_id,
            url=self.spec.url,
            model=self.info.model if self.info else "",
            state=self.state,
            policy_version=self.info.policy_version if self.info else 0,
            max_model_len=self.info.max_model_len if self.info else 0,
            in_flight=self.in_flight,
            reason=self.reason,
        )


class BackendPool:
    """`async with BackendPool(...)`; closing it stops the monitors and the HTTP session."""

    def __init__(self, spool_directory: Path, config: PoolConfig = PoolConfig()) -> None:
        self.config = config
        self.model: ServedModel | None = None
        self.background = Background()
        self._members: dict[str, _Member] = {}
        self._weights: Weights | None = None
        self._spool = WeightSpool(spool_directory)
        self._weights_lock = asyncio.Lock()
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> "BackendPool":
        self._session = open_session()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.background.close()
        await self._session.close()
        await self._spool.remove()

    # --- membership -----------------------------------------------------------------------------

    @property
    def policy_version(self) -> int:
        """Of the newest weights; 0 before the first update."""
        return self._weights.version if self._weights else 0

    def statuses(self) -> list[BackendStatus]:
        return [member.status() for member in self._members.values()]

    async def add(self, spec: BackendSpec, *, must_answer: bool = True) -> BackendStatus:
        """Idempotent. Raises `BackendUnavailable`, `Conflict` (another model), `InvalidRequest`.

        With `must_answer=False` a backend that does not answer yet joins when it does.
        """
        member = _Member(Backend(spec.url, self._session), spec)
        if member.backend_id in self._members:
            return self._members[member.backend_id].status()
        try:
            await self._revive(member)
        except ProRLError as error:
            if must_answer or not error.retryable:
                raise
        self._members[member.backend_id] = member
        member.monitor = self.background.start(
            self._monitor(member), name=f"monitor {member.backend_id}"
        )
        await self._announce_change()
        return member.status()

    async def remove(self, backend_id: str) -> BackendStatus:
        """Calls in flight there end as they will. Raises `NotFound`."""
        member = self._members.pop(backend_id, None)
        if member is None:
            raise NotFound(
                f"there is no backend {backend_id!r}", hint="GET /v1/backends lists them"
            )
        if member.monitor:
            member.monitor.cancel()
        member.state, member.reason = BackendState.DOWN, "removed"
        return member.status()

    def require_model(self) -> ServedModel:
        """Raises `BackendUnavailable` while no backend has ever answered."""
        if self.model is None:
            raise BackendUnavailable(
                "the service knows no inference engine yet",
                hint="start one and POST its address to /v1/backends",
            )
        return self.model

    # --- routing --------------------------------------------------------------------------------

    @contextmanager
    def session(self, rollout_id: str) -> Iterator["PinnedGenerator"]:
        """A generator for one rollout; leaving the context frees its pin."""
        generator = PinnedGenerator(self, rollout_id)
        try:
            yield generator
        finally:
            generator.unpin()

    async def choose(self, rollout_id: str) -> _Member:
        """Raises `BackendUnavailable` when none becomes healthy within the budget."""
        try:
            async with asyncio.timeout(self.config.wait_for_backend_s), self._changed:
                await self._changed.wait_for(self._healthy)
        except TimeoutError:
            reasons = "; ".join(f"{m.backend_id}: {m.reason}" for m in self._members.values())
            raise BackendUnavailable(
                f"no backend was healthy for {self.config.wait_for_backend_s:g} s",
                hint=reasons or "there is none; POST one to /v1/backends",
            ) from None
        return min(self._healthy(), key=lambda m: (m.pinned, _rendezvous(rollout_id, m.backend_id)))

    def _healthy(self) -> list[_Member]:
        return [member for member in self._members.values() if self._can_serve(member)]

    def _can_serve(self, member: _Member) -> bool:
        if member.state is not BackendState.HEALTHY or member.info is None:
            return False
        return self._weights is None or member.info.policy_version == self._weights.version

    async def _announce_change(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    # --- weights --------------------------------------------------------------------------------

    async def stream_weights(self, chunks: AsyncIterable[bytes], version: int) -> WeightsReport:
        """Give all backends the tensors of one safetensors file. Raises `BackendRejected`."""
        path = await self._spool.receive(chunks)
        report = await self.load_weights(Weights(WeightFile(path), version))
        await self._spool.keep_only(path)
        return report

    async def load_weights(self, weights: Weights) -> WeightsReport:
        """Update all backends at once; one that is down takes the weights when it is back.

        Raises `BackendRejected`, with the old weights still in use, when a backend refuses them;
        `InvalidRequest` for a directory that is seen to hold none.
        """
        await asyncio.to_thread(_check_directory, weights.source)
        async with self._weights_lock:
            previous, self._weights = self._weights, weights
            members = list(self._members.values())
            results = await asyncio.gather(
                *(self._update(member, weights) for member in members), return_exceptions=True
            )
            failures = [result for result in results if isinstance(result, BaseException)]
            for failure in failures:
                if not isinstance(failure, BackendUnavailable):
                    self._weights = previous
                    raise failure
        await self._announce_change()
        outcome = list(zip(members, results, strict=True))
        return WeightsReport(
            version=weights.version,
            applied=[member.backend_id for member, result in outcome if result is None],
            pending=[member.backend_id for member, result in outcome if result is not None],
        )

    async def _update(self, member: _Member, weights: Weights) -> None:
        """Raises `BackendUnavailable` when the backend has to come back first."""
        async with member.lock:
            if member.state is BackendState.DOWN:
                raise BackendUnavailable(member.reason)
            member.state = BackendState.UPDATING
            try:
                await self._load(member, weights)
            except BackendRejected:
                member.state = BackendState.HEALTHY
                raise
            except BackendError as error:
                self._mark_down(member, error)
                raise BackendUnavailable(error.message) from error
            member.state = BackendState.HEALTHY

    async def _load(self, member: _Member, weights: Weights) -> None:
        timeout_s = self.config.load_weights_timeout_s
        await member.backend.load_weights(weights.source, weights.version, timeout_s=timeout_s)
        assert member.info is not None
        member.info = replace(member.info, policy_version=weights.version)

    # --- health ---------------------------------------------------------------------------------

    async def _monitor(self, member: _Member) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.config.probe_interval_s):
                    await member.suspect.wait()
            member.suspect.clear()
            try:
                await self._revive(member)
            except ProRLError as error:
                self._mark_down(member, error)

    def _mark_down(self, member: _Member, error: ProRLError) -> None:
        if member.state is not BackendState.DOWN:
            log.warning("backend %s is down: %s", member.backend_id, error)
        member.state = BackendState.DOWN
        member.reason = f"{error.message} ({error.hint})" if error.hint else error.message

    async def _revive(self, member: _Member) -> None:
        """Probe; bring model and weights in line; healthy when it returns."""
        async with member.lock:
            if not await member.backend.is_healthy(timeout_s=self.config.probe_timeout_s):
                raise BackendUnavailable(
                    f"{member.spec.url} does not answer /health",
                    hint="is the inference engine running and reachable from the service?",
                )
            member.info = await member.backend.describe(timeout_s=self.config.probe_timeout_s)
            await self._agree_on_model(member.spec, member.info)
            await self._bring_up_to_date(member, member.info)
            was_down = member.state is BackendState.DOWN
            member.state, member.reason = BackendState.HEALTHY, ""
        if was_down:
            log.info("backend %s is healthy", member.backend_id)
            await self._announce_change()

    async def _bring_up_to_date(self, member: _Member, info: EngineInfo) -> None:
        """A paused engine may have lost its weights in an update; only a new update resumes it."""
        is_old = self._weights is not None and info.policy_version != self._weights.version
        if self._weights is not None and (is_old or info.is_paused):
            await self._load(member, self._weights)
        elif info.is_paused:
            raise BackendUnavailable(f"{member.spec.url} is paused", hint="resume or restart it")

    async def _agree_on_model(self, spec: BackendSpec, info: EngineInfo) -> None:
        if self.model is None:
            directory = Path(spec.tokenizer or info.root)
            chat = await asyncio.to_thread(ChatFormat.load, directory)
            self.model = ServedModel(info.model, chat, info.max_model_len)
        elif info.model != self.model.name:
            raise Conflict(
                f"{spec.url} serves {info.model!r}, the service uses {self.model.name!r}",
                hint="one service serves one model; start another for the other model",
            )
        elif info.max_model_len < self.model.max_model_len:
            self.model = replace(self.model, max_model_len=info.max_model_len)


class PinnedGenerator:
    """The `Generator` of one rollout. Made by `BackendPool.session`."""

    def __init__(self, pool: BackendPool, rollout_id: str) -> None:
        self._pool = pool
        self._rollout_id = rollout_id
        self._member: _Member | None = None

    async def generate(
        self,
        prompt_ids: list[int],
        *,
        sampling: Sampling,
        max_tokens: int,
        seed: int | None,
        stop_token_ids: list[int],
    ) -> Generation:
        member = await self._pinned()
        member.in_flight += 1
        try:
            generation = await member.backend.generate(
                prompt_ids,
                sampling=sampling,
                max_tokens=max_tokens,
                seed=seed,
                session_id=self._rollout_id,
                stop_token_ids=stop_token_ids,
            )
        except BackendError as error:
            if error.retryable:
                member.suspect.set()
            raise
        finally:
            member.in_flight -= 1
        if generation.finish_reason == "abort":
            raise BackendError(f"{member.backend_id} aborted the call")
        return generation

    def unpin(self) -> None:
        if self._member is not None:
            self._member.pinned -= 1
            self._member = None

    async def _pinned(self) -> _Member:
        if self._member is None or self._member.state is BackendState.DOWN:
            self.unpin()
            self._member = await self._pool.choose(self._rollout_id)
            self._member.pinned += 1
        return self._member


def _check_directory(source: WeightSource) -> None:
    """An engine that is told to load an empty directory may lose the weights it has."""
    if not isinstance(source, WeightDirectory):
        return
    directory = Path(source.path)
    if directory.is_dir() and not any(directory.glob("*.safetensors")):
        raise InvalidRequest.of_field("path", f"{directory} holds no *.safetensors file")


def _rendezvous(rollout_id: str, backend_id: str) -> bytes:
    return hashlib.blake2b(f"{rollout_id}\0{backend_id}".encode(), digest_size=8).digest()
