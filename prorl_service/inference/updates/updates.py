"""The newest weights, and how each backend gets them.

A backend that joins or comes back takes them before it serves. `membership` knows which backends
exist, `health` brings them back.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping
from typing import Any

from prorl_service.errors import BackendError, BackendRejected, BackendUnavailable
from prorl_service.inference.answers import EngineInfo
from prorl_service.inference.identity import ModelIdentity, OtherModel
from prorl_service.inference.member import AwaitsWeights, Member
from prorl_service.inference.ownership import PolicyOwner
from prorl_service.inference.transfer.ways import Broadcast, WeightSource
from prorl_service.inference.updates import nccl
from prorl_service.inference.updates.nccl import GroupGone, NcclGroup
from prorl_service.inference.updates.terms import agree
from prorl_service.inference.weights import Weights, WeightSpool, check_directory
from prorl_service.schemas import BackendState, Push, WeightsQuery, WeightsReport, WeightsTerms

log = logging.getLogger(__name__)


class _OutOfReach(BackendUnavailable):
    """The backend cannot be asked to take weights now."""


class WeightUpdates:
    """Updates of all backends, one at a time."""

    def __init__(
        self,
        members: Mapping[str, Member],
        spool: WeightSpool,
        owner: PolicyOwner,
        newest: Weights | None,
        keep: Callable[[Weights], Awaitable[None]],
        on_change: Callable[[], None],
        *,
        load_timeout_s: float,
    ) -> None:
        """`members`: the pool's, keyed by id. `keep` is called with weights that become the newest,
        before any older file is removed. `on_change` is called after each update, whether it
        succeeded or not."""
        self.newest = newest
        self._members = members
        self._spool = spool
        self._owner = owner
        self._keep = keep
        self._on_change = on_change
        self._load_timeout_s = load_timeout_s
        self._lock = asyncio.Lock()
        self._group: NcclGroup | None = None
        self._last_version = 0
        """Version of the last push, whether it succeeded or not: a number is never used twice."""

    async def stream(
        self, chunks: AsyncIterable[bytes], push: Push, training: str | None
    ) -> WeightsReport:
        """Gives all backends the tensors of one safetensors file. Raises like `load`, and
        `UploadStalled`, `WeightsNotKept`."""
        self._check_owner(training)  # before gigabytes arrive
        file = await self._spool.receive(chunks)  # without the lock: an upload may stall
        return await self.load(file, push, training)

    async def terms(self, query: WeightsQuery) -> WeightsTerms:
        """Returns the terms of `terms.agree`, with the directory where trainers may leave files."""
        agreed = await agree(self._within_reach(), self._group, query)
        place = {"directory": str(self._spool.directory), "probe": self._spool.probe}
        newest = 0 if self.newest is None else self.newest.version
        return agreed.model_copy(update=place | {"newest": newest})

    async def open_group(self, init_info: Mapping[str, Any]) -> NcclGroup:
        """Has all engines join a trainer's NCCL group. Raises like `nccl.open_group`."""
        async with self._lock:
            self._group = None
            members, timeout_s = self._within_reach(), self._load_timeout_s
            self._group = await nccl.open_group(members, init_info, timeout_s=timeout_s)
            return self._group

    async def broadcast(
        self, group_id: str, manifest: Mapping[str, Any], push: Push, training: str | None
    ) -> WeightsReport:
        """Has all engines receive what the trainer of the group broadcasts meanwhile. Raises like
        `load`; `GroupGone`; `BackendUnavailable` if any engine fails, since no copy is kept."""
        group = self._group
        is_last = group is not None and group.group_id == group_id
        if group is None or not is_last or not await group.is_of(self._within_reach()):
            raise GroupGone(
                "engines have joined, left or restarted since this NCCL group was opened",
                hint="open a new one: POST /v1/weights/group",
            )
        try:
            return await self.load(group.broadcast(manifest), push, training)
        except BaseException:
            self._group = None
            raise

    def _within_reach(self) -> list[Member]:
        """Returns the members that are up, or down for lack of weights alone."""
        return [
            member
            for member in self._members.values()
            if member.info is not None
            and (member.awaits_weights or member.state is not BackendState.DOWN)
        ]

    async def load(self, source: WeightSource, push: Push, training: str | None) -> WeightsReport:
        """Updates all backends in parallel; one that is down takes the weights when it is back.

        `training`: the key of that which pushes them; None: one that nobody has to know. Raises
        `BackendRejected` if a backend refuses the weights; `InvalidRequest` for a directory that
        visibly holds none; `PolicyTaken` and `PolicyUnclaimed`. After any error the previous
        weights stay the newest: backends that took the new ones are given the old ones again or, if
        there were none, are down until a restart or new weights.
        """
        await asyncio.to_thread(check_directory, source)
        outdated: WeightSource | None = source
        try:
            async with self._lock:
                self._check_owner(training)
                previous, began_at = self.newest, time.monotonic()
                if previous is not None and previous.push == push.push:
                    return self._report(previous)  # the answer was lost
                weights = Weights(source, self._next_version(push.after), push.push)
                weights.training = self._owner.training_id if training else None
                await self._load_everywhere(weights)
                outdated = None if previous is None else previous.source
                report = self._report(weights)
                _log(report, source, time.monotonic() - began_at)
                return report
        finally:
            newest = self.newest
            if outdated is not None and (newest is None or newest.source.path != outdated.path):
                await self._spool.remove(outdated)

    def _report(self, weights: Weights) -> WeightsReport:
        members = self._members.values()
        return WeightsReport(
            version=weights.version,
            applied=[one.backend_id for one in members if one.loaded is weights],
            pending=[one.backend_id for one in members if one.loaded is not weights],
        )

    def _check_owner(self, training: str | None) -> None:
        """Raises `PolicyTaken`, `PolicyUnclaimed`."""
        if training is not None:
            self._owner.check(training)

    def _next_version(self, after: int) -> int:
        """Returns a version above all that were ever pushed, or are known to engine or trainer."""
        known = [member.policy_version for member in self._members.values()]
        newest = 0 if self.newest is None else self.newest.version
        self._last_version = max(self._last_version, newest, after, *known, 0) + 1
        return self._last_version

    async def _load_everywhere(self, weights: Weights) -> None:
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

    async def _update(self, member: Member, weights: Weights) -> None:
        """Raises `BackendUnavailable` if the backend has to come back first."""
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
        """Raises `OtherModel` if the engine lacks the newest weights and serves another model."""
        newest = self.newest
        if newest is None or newest.model is None or member.loaded is newest:
            return
        model = await asyncio.to_thread(ModelIdentity.of, info)
        if model.is_another(newest.model):
            raise OtherModel(
                f"{member.spec.url} serves {model}, but the weights of version {newest.version} "
                f"are for {newest.model}",
                hint="serve that model there, or start another run with its own journal",
            )

    async def bring_up_to_date(self, member: Member, info: EngineInfo) -> None:
        """Gives the backend the newest weights, if it lacks them. Raises `BackendError`.

        A paused engine may have lost its weights in an update; only a new update resumes it.
        """
        if self.newest is not None:
            if member.loaded is not self.newest and isinstance(self.newest.source, Broadcast):
                _take_as_loaded(member, self.newest, info)
            elif member.loaded is not self.newest:
                await self._load(member, self.newest)
                await self._learn_model(member, self.newest)
        elif member.loaded is not None:
            raise AwaitsWeights(
                f"{member.spec.url} took version {member.loaded.version}, whose update failed",
                hint="restart the inference engine, or push new weights",
            )
        elif info.is_paused and not info.is_lent and member.spec.policy_version is None:
            raise AwaitsWeights(f"{member.spec.url} is paused", hint="resume or restart it")

    async def _learn_model(self, member: Member, weights: Weights) -> None:
        """Learns the model of weights pushed before any engine, once an engine takes them."""
        if weights.model is None:
            weights.model = await _model_of([member])
            await self._keep(weights)


def _take_as_loaded(member: Member, weights: Weights, info: EngineInfo) -> None:
    """Notes that the engine still has the broadcast weights. Raises `AwaitsWeights` if it does
    not."""
    if info.is_paused or info.policy_version != weights.version:
        raise AwaitsWeights(
            f"{member.spec.url} does not have the weights of version {weights.version}: they were "
            "broadcast by NCCL and are not kept",
            hint="the trainer's next weights bring it back",
        )
    member.loaded = weights


def _log(report: WeightsReport, source: WeightSource, took_s: float) -> None:
    pending = f"; pending at {', '.join(report.pending)}" if report.pending else ""
    text = "weights of version %d (%s) reached %d engines in %.1f s%s"
    log.info(text, report.version, source, len(report.applied), took_s, pending)


async def _model_of(members: Iterable[Member]) -> ModelIdentity | None:
    """Asks one member: all serve the same model."""
    info = next((member.info for member in members if member.info is not None), None)
    return None if info is None else await asyncio.to_thread(ModelIdentity.of, info)
