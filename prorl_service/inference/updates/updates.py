"""The newest weights, and how each backend gets them.

A backend that comes back (or joins) takes them before it serves. `membership` knows which backends
there are, `health` brings them back.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping
from typing import Any

from prorl_service.errors import BackendError, BackendRejected, BackendUnavailable, Conflict
from prorl_service.inference.answers import EngineInfo
from prorl_service.inference.identity import ModelIdentity, OtherModel
from prorl_service.inference.member import AwaitsWeights, Member
from prorl_service.inference.transfer.ways import Broadcast, WeightSource
from prorl_service.inference.updates import nccl
from prorl_service.inference.updates.nccl import GroupGone, NcclGroup
from prorl_service.inference.updates.terms import agree
from prorl_service.inference.weights import Weights, WeightSpool, check_directory
from prorl_service.schemas import BackendState, WeightsQuery, WeightsReport, WeightsTerms

log = logging.getLogger(__name__)


class _OutOfReach(BackendUnavailable):
    """The backend cannot be asked to take weights now."""


class WeightUpdates:
    """One update at a time."""

    def __init__(
        self,
        members: Mapping[str, Member],
        spool: WeightSpool,
        newest: Weights | None,
        keep: Callable[[Weights], Awaitable[None]],
        on_change: Callable[[], None],
        *,
        load_timeout_s: float,
    ) -> None:
        """`members`: those of the pool, keyed by id. `keep` gets each weights that become the
        newest, before any older file is removed. `on_change` is called after each update, whether
        it succeeded or not."""
        self.newest = newest
        self._members = members
        self._spool = spool
        self._keep = keep
        self._on_change = on_change
        self._load_timeout_s = load_timeout_s
        self._lock = asyncio.Lock()
        self._group: NcclGroup | None = None

    async def stream(
        self, chunks: AsyncIterable[bytes], version: int, *, rewind: bool
    ) -> WeightsReport:
        """Give all backends the tensors of one safetensors file. Raises as `load`, and
        `UploadStalled`, `WeightsNotKept`."""
        self._refuse_older(version, rewind=rewind)  # before gigabytes come
        file = await self._spool.receive(chunks)  # without the lock: an upload may stall
        return await self.load(Weights(file, version), rewind=rewind)

    async def terms(self, query: WeightsQuery) -> WeightsTerms:
        """See `terms.agree`; with the place where trainers may leave files."""
        agreed = await agree(self._within_reach(), self._group, query)
        place = {"directory": str(self._spool.directory), "probe": self._spool.probe}
        return agreed.model_copy(update=place)

    async def open_group(self, init_info: Mapping[str, Any]) -> NcclGroup:
        """Have all engines join a trainer's NCCL group. Raises as `nccl.open_group`."""
        async with self._lock:
            self._group = None
            members, timeout_s = self._within_reach(), self._load_timeout_s
            self._group = await nccl.open_group(members, init_info, timeout_s=timeout_s)
            return self._group

    async def broadcast(
        self, group_id: str, manifest: Mapping[str, Any], version: int, *, rewind: bool
    ) -> WeightsReport:
        """Have all engines receive what the trainer of the group broadcasts meanwhile. Raises as
        `load`; `GroupGone`; `BackendUnavailable` if any engine fails: nobody keeps the weights."""
        group = self._group
        is_last = group is not None and group.group_id == group_id
        if group is None or not is_last or not await group.is_of(self._within_reach()):
            raise GroupGone(
                "engines have joined, left or been started again since this NCCL group was opened",
                hint="open one again: POST /v1/weights/group",
            )
        try:
            weights = Weights(group.broadcast(manifest), version)
            return await self.load(weights, rewind=rewind)
        except BaseException:
            self._group = None
            raise

    def _within_reach(self) -> list[Member]:
        """Those that are up, or down for want of weights alone."""
        return [
            member
            for member in self._members.values()
            if member.info is not None
            and (member.awaits_weights or member.state is not BackendState.DOWN)
        ]

    async def load(self, weights: Weights, *, rewind: bool) -> WeightsReport:
        """Update all backends in parallel; one that is down takes the weights when it is back.

        Raises `BackendRejected` when a backend refuses them; `InvalidRequest` for a directory that
        is seen to hold none; `Conflict` for a version below the newest without `rewind`. After any
        error the weights before stay the newest: backends that took the new ones are given the old
        again, or, if there were none, are down until a restart.
        """
        await asyncio.to_thread(check_directory, weights.source)
        outdated: WeightSource | None = weights.source
        try:
            async with self._lock:
                self._refuse_older(weights.version, rewind=rewind)
                previous, began_at = self.newest, time.monotonic()
                report = await self._load_everywhere(weights)
                _log(report, weights.source, time.monotonic() - began_at)
                outdated = None if previous is None else previous.source
                return report
        finally:
            if outdated is not None:
                await self._spool.remove(outdated)

    def _refuse_older(self, version: int, *, rewind: bool) -> None:
        if self.newest is not None and version < self.newest.version and not rewind:
            raise Conflict(
                f"version {version} is older than the newest weights, {self.newest.version}",
                hint="a trainer that goes back, or starts again, says so: rewind=true",
            )

    async def _load_everywhere(self, weights: Weights) -> WeightsReport:
        previous, self.newest = self.newest, weights
        try:
            members = list(self._members.values())
            weights.model = await _model_of(members)
            is_broadcast = isinstance(weights.source, Broadcast)
            may_be_late = _OutOfReach if is_broadcast else BackendUnavailable
            *results, synced = await asyncio.gather(
                *(self._update(member, weights) for member in members),
                self._spool.sync(weights.source),
                return_exceptions=True,
            )
            for result in (*results, synced):
                if result is not None and not isinstance(result, may_be_late):
                    raise result
            await self._keep(weights)
        except BaseException:
            self.newest = previous
            raise
        finally:
            self._on_change()
        outcome = list(zip(members, results, strict=True))
        return WeightsReport(
            version=weights.version,
            applied=[member.backend_id for member, result in outcome if result is None],
            pending=[member.backend_id for member, result in outcome if result is not None],
        )

    async def _update(self, member: Member, weights: Weights) -> None:
        """Raises `BackendUnavailable` when the backend has to come back first."""
        async with member.lock:
            takes_broadcast = member.awaits_weights and isinstance(weights.source, Broadcast)
            if member.state is BackendState.DOWN and not takes_broadcast:
                raise _OutOfReach(member.reason)
            try:
                await self._load(member, weights)
            except BackendRejected:
                member.set_state(BackendState.HEALTHY)
                raise
            except BaseException as error:
                member.mark_down(error)
                if isinstance(error, BackendError):
                    raise BackendUnavailable(error.message) from error
                raise
            member.set_state(BackendState.HEALTHY)

    async def _load(self, member: Member, weights: Weights) -> None:
        member.set_state(BackendState.UPDATING, member.reason)
        try:
            await member.load_weights(weights, timeout_s=self._load_timeout_s)
        except BaseException:
            if isinstance(weights.source, Broadcast) and weights.source.start is not None:
                await weights.source.start.abort()  # the others would wait for it
            raise

    async def check_model(self, member: Member, info: EngineInfo) -> None:
        """Raises `OtherModel` if the engine is to be given weights that are of another."""
        newest = self.newest
        if newest is None or newest.model is None or member.loaded is newest:
            return
        model = await asyncio.to_thread(ModelIdentity.of, info)
        if model.is_another(newest.model):
            raise OtherModel(
                f"{member.spec.url} serves {model}, the weights of version {newest.version} are of "
                f"{newest.model}",
                hint="serve that model there, or begin another run, which has its own journal",
            )

    async def bring_up_to_date(self, member: Member, info: EngineInfo) -> None:
        """A paused engine may have lost its weights in an update; only a new update resumes it.

        Raises `BackendError`.
        """
        if self.newest is not None:
            if member.loaded is not self.newest and isinstance(self.newest.source, Broadcast):
                _take_as_loaded(member, self.newest, info)
            elif member.loaded is not self.newest:
                await self._load(member, self.newest)
                await self._learn_model(member, self.newest)
        elif member.loaded is not None:
            raise AwaitsWeights(
                f"{member.spec.url} took version {member.loaded.version}, which was not accepted",
                hint="restart the inference engine, or give new weights",
            )
        elif info.is_paused and not info.is_lent and member.spec.policy_version is None:
            raise AwaitsWeights(f"{member.spec.url} is paused", hint="resume or restart it")

    async def _learn_model(self, member: Member, weights: Weights) -> None:
        """Asks the first engine that takes weights which were pushed before there was an engine."""
        if weights.model is None:
            weights.model = await _model_of([member])
            await self._keep(weights)


def _take_as_loaded(member: Member, weights: Weights, info: EngineInfo) -> None:
    """If the engine has still what was broadcast. Raises `AwaitsWeights`."""
    if info.is_paused or info.policy_version != weights.version:
        raise AwaitsWeights(
            f"{member.spec.url} has not the weights of version {weights.version}: they were "
            "broadcast by NCCL and are not kept",
            hint="the trainer's next weights bring it back",
        )
    member.loaded = weights


def _log(report: WeightsReport, source: WeightSource, took_s: float) -> None:
    pending = f"; not yet at {', '.join(report.pending)}" if report.pending else ""
    text = "weights of version %d (%s) are at %d engines after %.1f s%s"
    log.info(text, report.version, source, len(report.applied), took_s, pending)


async def _model_of(members: Iterable[Member]) -> ModelIdentity | None:
    """All serve the same."""
    info = next((member.info for member in members if member.info is not None), None)
    return None if info is None else await asyncio.to_thread(ModelIdentity.of, info)
