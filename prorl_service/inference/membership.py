"""Membership of backends: they join, renew their leases, and leave.

A backend joins once it has answered a probe, or joins down. `health` monitors it until it is
removed or its lease expires. All backends have one owner.
"""

import logging
from collections.abc import Callable

from prorl_service.errors import NotFound, OwnedByAnother
from prorl_service.inference.backend import Backend
from prorl_service.inference.connections import Connections
from prorl_service.inference.health import HealthMonitor
from prorl_service.inference.member import PoolMember
from prorl_service.inference.model import CurrentModel, OtherModel
from prorl_service.inference.routing import EngineLoad
from prorl_service.schemas import BackendSpec, BackendState, BackendStatus
from prorl_service.utils.leases import Lease

log = logging.getLogger(__name__)


class Membership:
    def __init__(
        self,
        members: dict[str, PoolMember],
        model: CurrentModel,
        health: HealthMonitor,
        connections: Connections,
        on_change: Callable[[], None],
        *,
        max_calls: int,
    ) -> None:
        """`members`, keyed by id, is changed here alone. `on_change` is called after each change of
        the members or their states. `max_calls`: see `PoolConfig.max_calls_per_backend`."""
        self._members = members
        self._model = model
        self._health = health
        self._connections = connections
        self._on_change = on_change
        self._max_calls = max_calls

    async def add(self, spec: BackendSpec, *, must_answer: bool) -> BackendStatus:
        """See `BackendPool.add`."""
        self.check_owner(spec.owner)
        self._check_training(spec.training)
        backend = Backend(spec.url, self._connections, spec.api_key, spec.kind)
        member = PoolMember(backend, spec, EngineLoad(self._max_calls_of(spec)), self._on_change)
        while known := self._members.get(member.backend_id):
            if known.monitor is not None:
                self._renew(known, spec)
                return known.status()
            async with known.lock:  # wait for the call that is adding it
                pass
        self._members[member.backend_id] = member
        try:
            await self._health.revive(member)
        except BaseException as error:
            may_mend = isinstance(error, OtherModel) or getattr(error, "retryable", False)
            if must_answer or not may_mend:
                self._forget(member)
                raise
            member.mark_down(error)
        if not member.is_removed:
            self._health.start_monitor(member)
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
        return spec.max_calls or self._max_calls

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
        self._health.stop_monitor(member)
        self._model.leave(member.backend_id)
        self._on_change()


def owner_name(owner: str | None) -> str:
    return "its own" if owner is None else f"front {owner!r}"
