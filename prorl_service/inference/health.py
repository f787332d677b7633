"""Health of backends: each one is probed until it is removed, unless its owner reports its state.

A backend that answers its probe is given the newest weights, if it has others, and serves; one that
does not answer is marked down until a probe succeeds. A front reports the states of its engines to
the services behind it: those probe an engine only while their own calls fail or stay without an
answer. Knows nothing of other backends, and only the failures of calls.
"""

import asyncio
from contextlib import suppress

from prorl_service.inference.member import LENT, PoolMember
from prorl_service.inference.model import CurrentModel
from prorl_service.inference.weights.updates import WeightUpdates
from prorl_service.schemas import BackendState
from prorl_service.utils.tasks import TaskOwner

MISSED_PROBES = 2
"""Consecutive failed probes before a backend is marked down; one is enough if calls fail too."""


class HealthMonitor:
    def __init__(
        self,
        model: CurrentModel,
        updates: WeightUpdates,
        background: TaskOwner,
        *,
        probe_interval_s: float,
        probe_timeout_s: float,
        back_off_s: float,
    ) -> None:
        """`back_off_s`: see `PoolConfig`."""
        self._model = model
        self._updates = updates
        self._background = background
        self._probe_interval_s = probe_interval_s
        self._probe_timeout_s = probe_timeout_s
        self._back_off_s = back_off_s

    def start_monitor(self, member: PoolMember) -> None:
        name = f"monitor {member.backend_id}"
        member.monitor = self._background.start(self._monitor(member), name=name)

    def stop_monitor(self, member: PoolMember) -> None:
        if member.monitor is not None:
            self._background.cancel(member.monitor)

    async def _monitor(self, member: PoolMember) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._probe_interval_s):
                    await member.probe_now.wait()
            member.probe_now.clear()
            try:
                report = member.spec.report
                if report is None or self._updates.wanted is not None or member.must_be_probed:
                    await self.revive(member)
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

    async def revive(self, member: PoolMember) -> None:
        """Probes the backend and brings its model and weights in line. Afterwards the backend is
        healthy, lent, or being updated by others. Raises `ProRLError`."""
        async with member.lock:
            info = await member.probe(timeout_s=self._probe_timeout_s)
            await self._updates.check_model(member, info)
            model = await self._model.agree(
                member.backend_id, member.spec, info, lambda: not member.is_removed
            )
            if model.chat.vocab_size is not None:
                member.backend.vocab_size = model.chat.vocab_size
            await self._updates.bring_up_to_date(member, info)
            await member.check_logprobs()
            member.answered_at = asyncio.get_running_loop().time()
            member.check_calls(back_off_s=self._back_off_s)
            if member.is_lent:
                member.set_state(BackendState.UPDATING, LENT)
            elif self._updates.wanted is None and member.is_being_updated:
                member.set_state(BackendState.UPDATING)
            else:
                member.set_state(BackendState.HEALTHY)
            member.is_doubted = member.failed_calls > 0 or member.is_lent
