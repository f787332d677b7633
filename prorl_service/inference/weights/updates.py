"""The weights that trainers push, and how each backend gets them.

A backend that joins or comes back takes them before it serves. `membership` knows which backends
exist, and brings them back.
"""

import asyncio
import logging
import os.path
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from prorl_service.errors import BackendError, BackendRejected, BackendUnavailable
from prorl_service.inference.engines.base import EngineInfo, Intake
from prorl_service.inference.member import AwaitsWeights, PoolMember
from prorl_service.inference.model import ModelIdentity, OtherModel
from prorl_service.inference.ownership import PolicyOwner
from prorl_service.inference.pushed import NumberedWeights, PushedWeights, RefusedWeights
from prorl_service.inference.sources import (
    Broadcast,
    WeightDirectory,
    WeightFile,
    WeightSource,
)
from prorl_service.inference.weights import nccl
from prorl_service.inference.weights.nccl import GroupGone, NcclGroup
from prorl_service.inference.weights.spool import DifferenceUnusable, WeightSpool
from prorl_service.schemas import (
    BackendState,
    Push,
    StreamedPush,
    WeightsForm,
    WeightsQuery,
    WeightsReport,
    WeightsTerms,
)

log = logging.getLogger(__name__)


class _OutOfReach(BackendUnavailable):
    """The backend cannot be asked to take weights now."""


class WeightUpdates:
    """Updates of all backends, one at a time."""

    def __init__(
        self,
        members: Mapping[str, PoolMember],
        spool: WeightSpool,
        owner: PolicyOwner,
        pushed: PushedWeights,
        keep: Callable[[PushedWeights], Awaitable[None]],
        on_change: Callable[[], None],
        *,
        load_timeout_s: float,
    ) -> None:
        """`members`: the pool's, keyed by id. `keep` is called with what `pushed` becomes, before
        any older file is removed. `on_change` is called after each update, whether it succeeded or
        not."""
        self.pushed = pushed
        self.refusal = pushed.refusal
        """Last refusal of weights that were offered, told or not."""
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

    @property
    def newest(self) -> NumberedWeights | None:
        """Last weights that an engine has taken."""
        return self.pushed.newest

    @property
    def wanted(self) -> NumberedWeights | None:
        """Weights with which engines serve: those offered or, if there are none, the newest."""
        return self.pushed.offered or self.pushed.newest

    @property
    def are_undecided(self) -> bool:
        """True while the weights that are offered wait for an engine to take or refuse them."""
        return self.pushed.offered is not None and not self._lock.locked()

    def raise_refusal_after(self, known: RefusedWeights | None) -> None:
        """Raises `WeightsRejected` if offered weights were refused since `refusal` was `known`."""
        if self.refusal is not None and self.refusal is not known:
            raise self.refusal.error()

    async def load_stream(
        self,
        chunks: AsyncIterable[bytes],
        push: Push | None = None,
        *,
        training: str | None = None,
    ) -> WeightsReport:
        """Loads the tensors of one safetensors file, or of that to which a difference leads. Raises
        like `load`, and `UploadStalled`, `WeightsNotKept`, `DifferenceUnusable`."""
        self._check_owner(training)  # before gigabytes arrive
        await self._tell_refusal()
        # Without the lock: an upload may stall.
        if not isinstance(push, StreamedPush) or not push.base:
            file = await self._spool.receive(chunks)
        else:
            async with self._lock:
                if (known := self._told_of(push)) is not None:
                    return known
                base = self._base
            if base is None or base.digest != push.base:
                raise DifferenceUnusable("its base is not the newest weights")
            file = await self._spool.receive_difference(chunks, base)
        return await self.load(file, push, training=training)

    @property
    def _base(self) -> WeightFile | None:
        """File from which a difference may lead to the next weights."""
        source = None if self.wanted is None else self.wanted.source
        return source if isinstance(source, WeightFile) and not source.is_adapter else None

    async def terms(self, query: WeightsQuery) -> WeightsTerms:
        """Returns form, type and way of a trainer's weights, and where it may leave files. Raises
        `BackendError`; `BackendRejected` for an engine that takes no files."""
        agreed = await agreed_terms(self._within_reach(), self._group, query)
        place = {"directory": str(self._spool.directory), "probe": self._spool.probe}
        newest = 0 if self.newest is None else self.newest.version
        base = "" if self._base is None else self._base.digest
        return agreed.model_copy(update=place | {"newest": newest, "base": base})

    async def open_group(self, init_info: Mapping[str, Any]) -> NcclGroup:
        """Has all engines join a trainer's NCCL group. Raises like `nccl.open_group`."""
        async with self._lock:
            self._group = None
            members, timeout_s = self._within_reach(), self._load_timeout_s
            self._group = await nccl.open_group(members, init_info, timeout_s=timeout_s)
            return self._group

    async def load_broadcast(
        self, group_id: str, manifest: Mapping[str, Any], push: Push, *, training: str | None
    ) -> WeightsReport:
        """Loads what the trainer of the group broadcasts meanwhile. Raises like
        `load`; `GroupGone`; `BackendUnavailable` if any engine fails, since no copy is kept."""
        group = self._group
        is_last = group is not None and group.group_id == group_id
        if group is None or not is_last or not await group.is_of(self._within_reach()):
            raise GroupGone(
                "engines have joined, left or restarted since this NCCL group was opened",
                hint="open a new one: POST /v1/weights/group",
            )
        try:
            return await self.load(group.broadcast(manifest), push, training=training)
        except BaseException:
            self._group = None
            raise

    def _within_reach(self) -> list[PoolMember]:
        """Returns the members that are up, or down for lack of weights alone."""
        return [
            member
            for member in self._members.values()
            if member.info is not None
            and (member.awaits_weights or member.state is not BackendState.DOWN)
        ]

    async def load(
        self, source: WeightSource, push: Push | None = None, *, training: str | None = None
    ) -> WeightsReport:
        """Loads weights into all backends in parallel; one that is down takes them when it is back.
        If all are, the weights are offered to the first that returns.

        `training`: the key of that which pushes them; None: one that nobody has to know. Raises
        `BackendRejected` if a backend refuses the weights; `WeightsRejected` if those of the last
        push were refused later; `InvalidRequest` for a directory that visibly holds none;
        `PolicyTaken` and `PolicyUnclaimed`. After any error the previous weights stay the newest:
        backends that took the new ones are given the old ones again or, if there were none, are
        down until a restart or new weights.
        """
        push = push or Push()
        if isinstance(source, WeightDirectory):
            await asyncio.to_thread(source.check)
        weights = NumberedWeights(source, 0, push.push)
        async with self._lock:
            before, began_at = self.pushed, time.monotonic()
            try:
                self._check_owner(training)
                if (known := self._told_of(push)) is not None:
                    return known
                await self._tell_refusal()
                weights.version = self._next_version(push.after)
                weights.training = self._owner.training_id if training else None
                await self._load_everywhere(weights)
                report = self._report(weights)
                _log(report, source, time.monotonic() - began_at)
                return report
            finally:
                await self._remove(before.newest, before.offered, weights)

    def _told_of(self, push: Push) -> WeightsReport | None:
        """Returns the report of a push whose answer was lost; None for a new one."""
        wanted = self.wanted
        return self._report(wanted) if wanted and wanted.push == push.push else None

    def _report(self, weights: NumberedWeights) -> WeightsReport:
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
        newest = 0 if self.wanted is None else self.wanted.version
        refused = 0 if self.refusal is None else self.refusal.version
        self._last_version = max(self._last_version, newest, refused, after, *known, 0) + 1
        return self._last_version

    async def _tell_refusal(self) -> None:
        """Raises `WeightsRejected` if the weights pushed last were refused, once, to the training
        that had pushed them."""
        if (refusal := self.pushed.refusal) is not None:
            await self._become(replace(self.pushed, refusal=None))
            if refusal.training in (None, self._owner.training_id):
                raise refusal.error()

    async def _become(self, pushed: PushedWeights) -> None:
        self.pushed = pushed
        self._on_change()
        await self._keep(pushed)

    async def _remove(self, *weights: NumberedWeights | None) -> None:
        """Removes the files of those that are neither the newest nor offered."""
        for one in weights:
            if one is not None and str(one.source.path) not in self.pushed.files():
                await self._spool.remove(one.source)

    async def _load_everywhere(self, weights: NumberedWeights) -> None:
        before = self.pushed
        self.pushed = replace(before, offered=weights)
        try:
            members = list(self._members.values())
            weights.model = await _model_of(members)
            is_broadcast = isinstance(weights.source, Broadcast)
            may_be_late = _OutOfReach if is_broadcast else BackendUnavailable
            *results, synced = await asyncio.gather(
                *(self._load_now(member, weights) for member in members),
                self._spool.sync(weights.source),
                return_exceptions=True,
            )
            for result in (*results, synced):
                if result is not None and not isinstance(result, may_be_late):
                    raise result
            is_taken = None in results or self._is_held(weights)
            if is_broadcast and not is_taken:
                raise BackendUnavailable("no engine received the broadcast", hint="send it again")
            if is_taken:
                self.pushed = replace(self.pushed, newest=weights, offered=None)
            await self._keep(self.pushed)
        except BaseException:
            self.pushed = before
            raise
        finally:
            self._on_change()

    def _is_held(self, weights: NumberedWeights) -> bool:
        return any(member.loaded is weights for member in self._members.values())

    async def _load_now(self, member: PoolMember, weights: NumberedWeights) -> None:
        """Raises `BackendUnavailable` if the backend has to come back first."""
        async with member.lock:
            takes_broadcast = member.awaits_weights and isinstance(weights.source, Broadcast)
            if member.state is BackendState.DOWN and not takes_broadcast:
                raise _OutOfReach(member.reason)
            try:
                await self._load_at(member, weights)
            except BackendRejected:
                member.set_state(BackendState.HEALTHY)
                raise
            except BaseException as error:
                member.mark_down(error)
                if isinstance(error, BackendError):
                    raise BackendUnavailable(error.message) from error
                raise
            member.set_state(BackendState.HEALTHY)

    async def _load_at(self, member: PoolMember, weights: NumberedWeights) -> None:
        member.set_state(BackendState.UPDATING, member.reason)
        try:
            await member.load_weights(weights, timeout_s=self._load_timeout_s)
        except BaseException:
            if isinstance(weights.source, Broadcast) and weights.source.start is not None:
                await weights.source.start.abort()  # the others would wait for it
            raise

    async def check_model(self, member: PoolMember, info: EngineInfo) -> None:
        """Raises `OtherModel` if the engine lacks the weights and serves another model."""
        wanted = self.wanted
        if wanted is None or wanted.model is None or member.loaded is wanted:
            return
        model = await asyncio.to_thread(ModelIdentity.of, info)
        if model.is_another(wanted.model):
            raise OtherModel(
                f"{member.spec.url} serves {model}, but the weights of version {wanted.version} "
                f"are for {wanted.model}",
                hint="serve that model there, or start another run with its own journal",
            )

    async def bring_up_to_date(self, member: PoolMember, info: EngineInfo) -> None:
        """Gives the backend the weights that are offered or the newest, if it lacks them, unless a
        push is in progress. The first to take those offered makes them the newest; if it refuses
        them, the newest serve on. Raises `BackendError`.

        A paused engine may have lost its weights in an update; only a new update resumes it.
        """
        wanted = self.wanted
        if wanted is not None:
            if self._lock.locked():
                return  # the push gives them, or the next probe does
            try:
                await self._give(member, wanted, info)
            except BackendRejected as error:
                if not self._decides(wanted):
                    raise
                await self._give_up(wanted, error)
                await self.bring_up_to_date(member, info)
            else:
                if self._decides(wanted):
                    await self._note_taken(wanted)
        elif member.loaded is not None:
            raise AwaitsWeights(
                f"{member.spec.url} took version {member.loaded.version}, whose update failed",
                hint="restart the inference engine, or push new weights",
            )
        elif info.is_paused and not info.is_lent and member.spec.policy_version is None:
            raise AwaitsWeights(f"{member.spec.url} is paused", hint="resume or restart it")

    async def _give(self, member: PoolMember, weights: NumberedWeights, info: EngineInfo) -> None:
        if member.loaded is not weights and isinstance(weights.source, Broadcast):
            _take_as_loaded(member, weights, info)
        elif member.loaded is not weights:
            await asyncio.to_thread(_check_kept, weights)
            await self._load_at(member, weights)
            if weights.model is None:  # they were pushed before any engine
                weights.model = await _model_of([member])

    def _decides(self, weights: NumberedWeights) -> bool:
        """Returns whether one engine's answer decides on `weights`: during a push, all decide."""
        return self.are_undecided and weights is self.pushed.offered

    async def _note_taken(self, weights: NumberedWeights) -> None:
        outdated = self.pushed.newest
        await self._become(replace(self.pushed, newest=weights, offered=None))
        await self._remove(outdated)

    async def _give_up(self, weights: NumberedWeights, error: BackendRejected) -> None:
        self.refusal = RefusedWeights(weights.version, error.message, weights.training)
        log.error("%s", self.refusal.error().message)
        await self._become(replace(self.pushed, offered=None, refusal=self.refusal))
        await self._remove(weights)


def _take_as_loaded(member: PoolMember, weights: NumberedWeights, info: EngineInfo) -> None:
    """Notes that the engine still has the broadcast weights. Raises `AwaitsWeights` if it does
    not."""
    if info.is_paused or info.label != weights.label:
        raise AwaitsWeights(
            f"{member.spec.url} does not have the weights of version {weights.version}: they were "
            "broadcast by NCCL and are not kept",
            hint="the trainer's next weights bring it back",
        )
    member.loaded = weights


def _check_kept(weights: NumberedWeights) -> None:
    """Raises `AwaitsWeights` if their file was removed."""
    if isinstance(weights.source, WeightFile) and not weights.source.path.exists():
        raise AwaitsWeights(
            f"{weights.source.path}, with the weights of version {weights.version}, is gone",
            hint="the trainer's next weights bring it back",
        )


def _log(report: WeightsReport, source: WeightSource, took_s: float) -> None:
    pending = f"; pending at {', '.join(report.pending)}" if report.pending else ""
    text = "weights of version %d (%s) reached %d engines in %.1f s%s"
    log.info(text, report.version, source, len(report.applied), took_s, pending)


async def _model_of(members: Iterable[PoolMember]) -> ModelIdentity | None:
    """Asks one member: all serve the same model."""
    info = next((member.info for member in members if member.info is not None), None)
    return None if info is None else await asyncio.to_thread(ModelIdentity.of, info)


async def agreed_terms(
    members: Collection[PoolMember], group: NcclGroup | None, query: WeightsQuery
) -> WeightsTerms:
    """Returns the form, type and way that the trainer can give and all engines take. `members`:
    those that answer; others, once back, take the weights or report why they cannot. `group`: the
    last one that a trainer opened."""
    engines = []
    protocol = nccl.protocol_of(members)
    is_known = {"vllm": query.nccl, "sglang": query.torch_nccl}.get(protocol, False)
    workers = await nccl.workers_of(members) if is_known else 0
    for member in members:
        assert member.info is not None
        intake = await member.backend.intake(member.info)
        if query.as_file and not workers:
            intake.require_files(member.spec.url)
        engines.append((member.info, intake, member.spec.url))
    dtypes = {intake.dtype for _, intake, _ in engines}
    terms = WeightsTerms(
        form=WeightsForm.MODEL,
        dtype=dtypes.pop() if len(dtypes) == 1 else None,
        workers=workers,
        protocol=protocol if workers else "",
        group=group.group_id if workers and group and await group.is_of(members) else "",
    )
    if not query.lora_rank:
        return terms
    reasons = [_against_adapter(*engine, query) for engine in engines]
    reason = next(filter(None, reasons), "" if reasons else "no engine is up")
    form = WeightsForm.MODEL if reason else WeightsForm.ADAPTER
    return terms.model_copy(update={"form": form, "reason": reason})


def _against_adapter(info: EngineInfo, intake: Intake, url: str, query: WeightsQuery) -> str | None:
    """Returns why the engine cannot put the adapter on its model; None if it can."""
    if intake.max_lora_rank == 0:
        return f"{url} takes no LoRA adapters"
    if intake.max_lora_rank < query.lora_rank:
        return f"{url} takes LoRA adapters up to rank {intake.max_lora_rank}"
    if not info.has_first_base:
        return f"{url} no longer has the weights it was started with"
    if info.root != query.base and os.path.realpath(info.root) != os.path.realpath(query.base):
        return f"{url} was started with {info.root}, but the adapter is for {query.base}"
    return None
