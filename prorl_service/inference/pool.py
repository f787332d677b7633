"""The inference engines in use, for rollouts that sample and for the server.

Puts the parts together: `membership` (which backends exist and serve), `updates` (with which
weights), `dispatch` (which one takes a call). All backends serve one model and have the newest
weights before they serve: no rollout starts on older ones.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from prorl_service.errors import NotTrainable
from prorl_service.inference.cache_budget import CacheBudget
from prorl_service.inference.connections import Connections
from prorl_service.inference.dispatch import Dispatch
from prorl_service.inference.engines.kinds import DEFAULT
from prorl_service.inference.member import PoolMember
from prorl_service.inference.membership import Membership
from prorl_service.inference.membership import PoolConfig as PoolConfig
from prorl_service.inference.model import CurrentModel
from prorl_service.inference.ownership import PolicyOwner
from prorl_service.inference.pushed import PushedWeights
from prorl_service.inference.routing import LeastExpectedTime, Router
from prorl_service.inference.session import RolloutSession
from prorl_service.inference.weights.spool import WeightSpool
from prorl_service.inference.weights.updates import WeightUpdates
from prorl_service.schemas import (
    API_KIND,
    BackendSpec,
    BackendState,
    BackendStatus,
)
from prorl_service.utils.budget import WorkClock
from prorl_service.utils.tasks import TaskOwner

NOTHING_PUSHED = PushedWeights()


async def _forget_weights(_: PushedWeights) -> None: ...


class BackendPool:
    """An async context manager; leaving it stops the monitors and closes the connections."""

    def __init__(
        self,
        spool_directory: Path,
        config: PoolConfig | None = None,
        *,
        owner: PolicyOwner | None = None,
        pushed: PushedWeights = NOTHING_PUSHED,
        keep: Callable[[PushedWeights], Awaitable[None]] = _forget_weights,
        router: Router | None = None,
    ) -> None:
        """`owner`: the training that may change the policy. `pushed`: weights that backends are
        given before they serve. `keep` is called with those that replace them, before any file of
        the old ones is removed."""
        config = config or PoolConfig()
        self.owner = owner or PolicyOwner()
        self.model = CurrentModel(self._problems, config.reply_format)
        self.cache = CacheBudget()
        self.background = TaskOwner()
        self._members: dict[str, PoolMember] = {}
        self._watchers: list[Callable[[], None]] = []
        self._connections = Connections()
        self._spool = WeightSpool(spool_directory, silence_s=config.upload_silence_s)
        self.weights = WeightUpdates(
            self._members,
            self._spool,
            self.owner,
            pushed,
            keep,
            self._on_change,
            load_timeout_s=config.load_weights_timeout_s,
        )
        self._dispatch = Dispatch(
            self._members,
            self.weights,
            self.model,
            router or LeastExpectedTime(),
            wait_s=config.wait_for_backend_s,
        )
        self._membership = Membership(
            self._members,
            self.model,
            self.weights,
            self.background,
            self._connections,
            self._on_change,
            config,
        )

    async def __aenter__(self) -> "BackendPool":
        await asyncio.to_thread(self._spool.open, self.weights.pushed.files())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._membership.close()
        await self.background.close()
        await self._connections.aclose()
        await asyncio.to_thread(self._spool.close, self.weights.pushed.files())

    # --- for the parts --------------------------------------------------------------------------

    def _on_change(self) -> None:
        """Handles a change of members, of their states or of the newest weights."""
        if not self._members and self.weights.wanted is None:
            self.model.forget()  # the next backend may bring another
        if up := self._up():
            self.cache.set_engines([one.cache for one in up])
        self._dispatch.announce_change()
        for watcher in self._watchers:
            watcher()

    def _problems(self) -> str:
        return "; ".join(f"{m.backend_id}: {m.reason}" for m in self._members.values())

    # --- for rollouts ---------------------------------------------------------------------------

    @contextmanager
    def session(self, rollout_id: str, clock: WorkClock | None = None) -> Iterator[RolloutSession]:
        """Yields a generator for one rollout, of the model that is served now; leaving the context
        frees its pin and its place. `clock` counts the rollout's work. Raises `BackendUnavailable`
        while there is no model."""
        model = self.model.require().name
        clock = clock or WorkClock()
        session = RolloutSession(rollout_id, clock, self._dispatch, model, self.cache)
        try:
            yield session
        finally:
            session.close()

    async def until_up(self) -> None:
        """Waits until a model is known, and an engine of it serves or will do so without help.
        Raises `WeightsRejected` if the weights that it waits for turn out to be unfit."""
        known = self.weights.refusal
        while self.model.current is None or not self._up() or self.weights.are_undecided:
            await self._dispatch.changes.wait()
            self.weights.raise_refusal_after(known)

    @property
    def is_serving(self) -> bool:
        return bool(self._dispatch.healthy())

    async def until_serving(self) -> None:
        """Waits until an engine can take a call. Raises `WeightsRejected` if the weights that it
        waits for turn out to be unfit."""
        known = self.weights.refusal
        while not self._dispatch.healthy():
            await self._dispatch.changes.wait()
            self.weights.raise_refusal_after(known)

    def _up(self) -> list[PoolMember]:
        return [one for one in self._members.values() if one.state is not BackendState.DOWN]

    # --- for the server: backends ---------------------------------------------------------------

    async def add(self, spec: BackendSpec, *, must_answer: bool = True) -> BackendStatus:
        """Adds a backend; a known one takes over `spec`, with its lease renewed. Raises
        `BackendUnavailable`, `Conflict` (another model), `OwnedByAnother`, `InvalidRequest`.

        With `must_answer=False`, a backend that does not answer yet, or serves another model than
        that of the newest weights, joins down, and serves once that has changed.
        """
        return await self._membership.add(spec, must_answer=must_answer)

    async def remove(self, backend_id: str) -> BackendStatus:
        """Removes a backend, whose calls in flight continue. Raises `NotFound`."""
        return self._membership.remove(backend_id)

    def check_owner(self, owner: str | None) -> None:
        """Raises `OwnedByAnother` if there are backends of another owner."""
        self._membership.check_owner(owner)

    async def remove_all_of_others(self, training: str) -> None:
        """Removes the engines that trainings but this one have brought along."""
        for member in list(self._members.values()):
            if member.spec.training not in (None, training):
                await self.remove(member.backend_id)

    def provider(self, backend_id: str) -> str:
        """Kind of engine, for traces; may be called from any thread. Engines that are gone, and
        gateways, count as vLLM, whose routes they have."""
        member = self._members.get(backend_id)
        return DEFAULT.kind if member is None else member.backend.engine.kind

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call `watcher` after each change of backends, of their states or of the weights, and
        after each probe."""
        self._watchers.append(watcher)

    def states(self) -> dict[str, tuple[str, int]]:
        """States and policy versions by id."""
        return {one.backend_id: (one.state, one.policy_version) for one in self._members.values()}

    def statuses(self) -> list[BackendStatus]:
        return [member.status() for member in self._members.values()]

    def offers(self, services: int = 1) -> list[BackendSpec]:
        """Returns the backends that have answered, with their states, for so many services that
        leave the weights to this pool."""
        known = {"policy_version": self.pushed_version, "training": None}
        return [
            one.spec.model_copy(update=known | {"report": one.report(services)})
            for one in self._members.values()
            if one.info is not None
        ]

    # --- for the server: weights ----------------------------------------------------------------

    @property
    def spool_directory(self) -> Path:
        return self._spool.directory

    @property
    def policy_version(self) -> int:
        """Version of the last weights that a backend has taken. Before the first: the newest
        version that a backend reports, since others update some; 0 without a report."""
        if self.weights.newest is not None:
            return self.weights.newest.version
        members = self._members.values()
        return max((one.policy_version for one in members if one.loaded is None), default=0)

    @property
    def pushed_version(self) -> int | None:
        """Version of the weights pushed last and not refused; None if there were none."""
        return None if self.weights.wanted is None else self.weights.wanted.version

    def raise_if_refused(self, version: int | None) -> None:
        """Raises `WeightsRejected` if weights of that version were pushed, and then refused."""
        refusal = self.weights.refusal
        if refusal is not None and version == refusal.version != self.pushed_version:
            raise refusal.error()

    @property
    def refused_weights(self) -> str | None:
        """Reason why the newest pushed weights were given up; None once the trainer knows it."""
        refusal = self.weights.pushed.refusal
        return None if refusal is None else refusal.error().message

    def check_trainable(self) -> None:
        """Raises `NotTrainable` if the policy is a model behind an API."""
        for member in self._members.values():
            if member.spec.kind == API_KIND:
                raise NotTrainable(
                    f"the policy of this service is {member.spec.model}, a model behind an API: it "
                    "gives text without token ids or logprobs, and cannot be trained",
                    hint="train with engines (vLLM, SGLang, prorl engine); evaluate with this "
                    "service, or export its rollouts for fine-tuning",
                )

    def check_training(self, training: str) -> None:
        """Raises `NotTrainable`, `PolicyTaken` and `PolicyUnclaimed` unless rollouts for this
        training would begin with its own policy."""
        self.check_trainable()
        self.owner.check(training)
        wanted = self.weights.wanted
        if wanted is not None:
            self.owner.check_weights(wanted.training)
