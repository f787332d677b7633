"""A trainer's side of a sampler: feeds it candidates when it wants some, and takes its draws.

Blocking, on `RolloutClient`. Independent of trainers and data sets: candidates are any iterator of
groups, in the order of the data.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from prorl_service.client import RolloutClient, ServiceCallError, WaitTimeout
from prorl_service.errors import Conflict, ProRLError
from prorl_service.schemas import Group, Rollout
from prorl_service.schemas.sampling import (
    DifficultyCounts,
    Draw,
    DrawSpec,
    DrawState,
    SamplerSpec,
    SamplerStatus,
    summed,
)
from prorl_service.utils.runs import new_run

log = logging.getLogger(__name__)

POLL_S = 20.0
"""Seconds for which one request for the sampler's news stays open."""
FETCH_IDLE_S = 60.0
"""Longest wait for the next rollout of a draw: all have ended, so a longer one means a fault."""
MIN_LEASE_S = 3600.0
"""Shortest time for which a sampler waits for the next step, in seconds."""
HOPELESS = 16
"""Failed groups after which all are expected to fail, as long as nothing was scored."""


class Fed:
    """Candidates that one start of a trainer has given its sampler, and that have not ended there.

    A sampler that was deleted, by its lease or with the service's run, is made again without them:
    they are given again.
    """

    def __init__(self) -> None:
        self._groups: dict[str, Group] = {}
        self._revision = 0

    def add(self, groups: Iterable[Group]) -> None:
        self._groups |= {group.group_id: group for group in groups}

    def note(self, status: SamplerStatus) -> list[Group]:
        """Returns the candidates to give again: all, if the sampler began again from zero."""
        was_made_again = status.revision < self._revision
        self._revision = status.revision
        return list(self._groups.values()) if was_made_again else []

    def have_ended(self, draw: Draw) -> None:
        for given in draw.groups:
            self._groups.pop(given.candidate, None)
        for dropped in draw.dropped:
            self._groups.pop(dropped.candidate, None)


class SamplerClient:
    """The sampler `sampler_id`, made if it does not exist. As a context it is deleted at the end.

    A sampler that another start of a trainer left is joined only if `spec.run` names the run to be
    continued: otherwise `draw` raises a `ServiceCallError` of status 409.
    """

    def __init__(
        self,
        client: RolloutClient,
        sampler_id: str,
        spec: SamplerSpec,
        candidates: Iterator[Group],
        on_status: Callable[[SamplerStatus], None] = lambda _: None,
        fed: Fed | None = None,
    ) -> None:
        """`on_status` gets the sampler's status while a draw is open, and at its end. `fed`: what
        earlier clients of the same sampler have given it."""
        self._client = client
        self._sampler_id = sampler_id
        self._spec = _of_this_start(spec)
        self._candidates = candidates
        self._on_status = on_status
        self._fed = fed or Fed()

    def __enter__(self) -> "SamplerClient":
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            self._client.delete_sampler(self._sampler_id)
        except ServiceCallError:  # the error that ended the block says more
            if error is None:
                raise

    def draw(self, draw_id: str, spec: DrawSpec) -> tuple[Draw, list[list[Rollout]]]:
        """Returns the ended draw and the rollouts of its groups, which the service may then forget.

        Raises `ServiceCallError`, of status 404 if the service was restarted without its run:
        groups not yet drawn are lost then, and the same draw may be opened again. Raises `Conflict`
        if another draw takes its place.
        """
        draw = self._wait(draw_id, spec)
        rollouts = self._fetch(draw)
        if draw.groups:
            self._client.acknowledge([group.group_id for group in draw.groups])
        return draw, rollouts

    def _wait(self, draw_id: str, spec: DrawSpec) -> Draw:
        name, client = self._sampler_id, self._client
        if lost := self._fed.note(client.create_sampler(name, self._spec)):
            text = "sampler %s was deleted by its lease or a restart; %d candidates are given again"
            log.warning(text, name, len(lost))
            client.add_candidates(name, lost)
        status = client.open_draw(name, draw_id, spec)
        while (draw := self._own(status, draw_id)).state is DrawState.OPEN:
            if status.wanted:
                groups = list(islice(self._candidates, status.wanted))
                is_last = len(groups) < status.wanted
                self._fed.add(groups)
                status = client.add_candidates(name, groups, is_last=is_last)
            else:
                status = client.sampler(name, status.revision, POLL_S)
            self._tell(status)
        self._tell(status)
        self._fed.have_ended(draw)
        return draw

    def _tell(self, status: SamplerStatus) -> None:
        self._fed.note(status)
        self._on_status(status)

    def _own(self, status: SamplerStatus, draw_id: str) -> Draw:
        """Returns the newest draw. Raises `Conflict` if it is another."""
        newest = status.draw
        if newest is None or newest.draw_id != draw_id:
            raise Conflict(
                f"the newest draw of sampler {self._sampler_id!r} is not {draw_id!r}, but "
                f"{newest and newest.draw_id!r}",
                hint="does another trainer draw from it? Give every run a sampler of its own",
            )
        return newest

    def _fetch(self, draw: Draw) -> list[list[Rollout]]:
        """Returns the rollouts of each group. Raises `WaitTimeout` if nothing arrives for
        `FETCH_IDLE_S`."""
        ended: dict[str, Rollout] = {}
        ids = [one for group in draw.groups for one in group.rollout_ids()]
        while missing := [one for one in ids if one not in ended]:
            try:
                for rollout in self._client.stream(missing, FETCH_IDLE_S):
                    ended[rollout.rollout_id] = rollout
            except WaitTimeout as timeout:
                is_stuck = len(timeout.pending) == len(missing)
                # One whose service was lost with the result is in flight again.
                if is_stuck and self._client.get(timeout.pending[0]).is_terminal:
                    raise
        return [[ended[one] for one in group.rollout_ids()] for group in draw.groups]


def _of_this_start(spec: SamplerSpec) -> SamplerSpec:
    return spec if spec.run else spec.model_copy(update={"run": new_run()})


class AllGroupsFail(ProRLError):
    """The first groups all failed: `HOPELESS` of them or more, before anything was scored."""


def all_failed(problem: str, status: SamplerStatus) -> AllGroupsFail:
    """Returns the error, with the reason of the last failure."""
    if (reason := status.last_failure) is None:
        return AllGroupsFail(problem)
    last = f"the last by {reason.blame.value}: {reason.message}"
    return AllGroupsFail(f"{problem}, {last}", hint=reason.hint)


class CandidateQueue:
    """Iterator over the groups that were put in, and over `others` when those run out."""

    def __init__(self, others: Iterator[Group]) -> None:
        self._put: deque[Group] = deque()
        self._others = others

    def put(self, groups: Iterable[Group]) -> None:
        self._put.extend(groups)

    def __iter__(self) -> "CandidateQueue":
        return self

    def __next__(self) -> Group:
        return self._put.popleft() if self._put else next(self._others)


class StepDraws:
    """The draws of one training run."""

    def __init__(
        self, sampler_id: str, spec: SamplerSpec, candidates: Iterator[Group], *, deadline_s: float
    ) -> None:
        """`deadline_s`: deadline of a step; the sampler outlives its client by twice as much."""
        lease_s = spec.lease_s or max(MIN_LEASE_S, 2 * deadline_s)
        self._spec = _of_this_start(spec.model_copy(update={"lease_s": lease_s}))
        self._sampler_id = sampler_id
        self._candidates = candidates
        self._fed = Fed()
        self._before: SamplerStatus | None = None
        """Status when the current step began."""
        self._now: SamplerStatus | None = None
        self.difficulties: list[DifficultyCounts] = []
        """Counts of the current step, for each difficulty."""

    def draw(
        self,
        client: RolloutClient,
        draw_id: str,
        spec: DrawSpec,
        on_status: Callable[[SamplerStatus], None] = lambda _: None,
        *,
        is_new_step: bool = True,
    ) -> tuple[Draw, list[list[Rollout]]]:
        """Like `SamplerClient.draw`. Also raises `AllGroupsFail`."""
        if is_new_step:
            self._before = self._now
            self.difficulties = []

        def note(status: SamplerStatus) -> None:
            if self._before is not None and status.scored < self._before.scored:
                self._before = None  # the sampler began again from zero
            self._now = status
            self._check_hope(status)
            on_status(status)

        sampler = SamplerClient(
            client, self._sampler_id, self._spec, self._candidates, note, self._fed
        )
        draw, rollouts = sampler.draw(draw_id, spec)
        self.difficulties = summed([*self.difficulties, *draw.difficulties])
        return draw, rollouts

    def _check_hope(self, status: SamplerStatus) -> None:
        if status.failed >= HOPELESS and not (status.scored or status.given):
            raise all_failed(f"the first {status.failed} groups failed", status)

    def metrics(self) -> dict[str, float]:
        """Returns the metrics of the last step, up to its last draw."""
        if self._now is None:
            return {}
        now = self._now
        counts = ("uninformative", "failed", "stale", "decided_early", "carried", "passed_over")
        values = {f"prorl/sampling/{name}": self._since(name) for name in counts}
        values["prorl/sampling/deferred"] = now.deferred
        useless = self._since("uninformative") + self._since("failed")
        if ended := self._since("given") + useless:
            values["prorl/sampling/informative_share"] = self._since("given") / ended
        if scored := self._since("scored"):
            before = self._before
            known = before.scored * (before.score_mean or 0) if before else 0
            total = now.scored * (now.score_mean or 0)
            values["prorl/sampling/unfiltered_reward"] = (total - known) / scored
        return values | difficulty_metrics(self.difficulties)

    def _since(self, name: str) -> float:
        before = getattr(self._before, name) if self._before else 0
        return float(getattr(self._now, name) - before)


def difficulty_metrics(counts: Iterable[DifficultyCounts]) -> dict[str, float]:
    """Returns the mean score, and the share of informative groups, of each difficulty that has
    any."""
    values: dict[str, float] = {}
    for one in counts:
        name = f"prorl/difficulty/{one.difficulty.kind}/{one.difficulty.level}"
        shown = {"score": one.score_mean, "informative_share": one.informative_share}
        values |= {f"{name}/{key}": value for key, value in shown.items() if value is not None}
    return values
