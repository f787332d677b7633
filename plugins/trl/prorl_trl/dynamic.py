"""Dynamic sampling for TRL: a step's groups are drawn from a sampler of the service.

The step's own prompts are its first candidates, others of the training set follow while too few are
informative. What is under way when a step has its groups goes on for the next one.
"""

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from transformers import TrainerCallback

from prorl_service.client import RolloutClient
from prorl_service.drawing import Sampler
from prorl_service.errors import ProRLError
from prorl_service.sampler_schemas import DrawSpec, SamplerSpec, SamplerStatus
from prorl_service.schemas import Blame, ErrorInfo, Group, Rollout

MIN_LEASE_S = 3600.0
"""The sampler waits for so long for the next step."""
HOPELESS = 16
"""Groups of a draw that failed before any other ended: all will."""


class AllGroupsFail(ProRLError):
    """Not one group of a draw could be scored."""


class Candidates:
    """Groups that were put in, then others, without end."""

    def __init__(self, prompts: Iterator[Any], group_of: Callable[[Any], Group]) -> None:
        self._put: deque[Group] = deque()
        self._prompts = prompts
        self._group_of = group_of

    def put(self, groups: Sequence[Group]) -> None:
        self._put.extend(groups)

    def __iter__(self) -> "Candidates":
        return self

    def __next__(self) -> Group:
        return self._put.popleft() if self._put else self._group_of(next(self._prompts))


def prompts_without_end(dataset: Any, seed: int) -> Iterator[Any]:
    """Of a dataset with a length in another order each time round; of a stream in its own."""
    order = random.Random(seed)
    while True:
        rows: Any = dataset
        if hasattr(dataset, "__len__"):
            rows = (dataset[i] for i in order.sample(range(len(dataset)), len(dataset)))
        for row in rows:
            yield row["prompt"]


class DynamicSampling:
    """The draws of one training run."""

    def __init__(
        self, sampler_id: str, spec: SamplerSpec, candidates: Candidates, *, deadline_s: float
    ) -> None:
        lease_s = spec.lease_s or max(MIN_LEASE_S, 2 * deadline_s)
        self._spec = spec.model_copy(update={"lease_s": lease_s})
        self._sampler_id = sampler_id
        self._candidates = candidates
        self._before: SamplerStatus | None = None
        """The step."""
        self._now: SamplerStatus | None = None

    def draw(
        self,
        client: RolloutClient,
        draw_id: str,
        groups: Sequence[Group],
        deadline_s: float,
        on_status: Callable[[SamplerStatus], None],
    ) -> list[list[Rollout]]:
        """As many as `groups`, or fewer at the deadline. Raises `AllGroupsFail`."""
        self._candidates.put(groups)
        self._before = self._now

        def note(status: SamplerStatus) -> None:
            if self._before is not None and status.scored < self._before.scored:
                self._before = None  # it began anew
            self._now = status
            self._check_hope(status)
            on_status(status)

        sampler = Sampler(client, self._sampler_id, self._spec, self._candidates, note)
        _, drawn = sampler.draw(draw_id, DrawSpec(target=len(groups), deadline_s=deadline_s))
        return drawn

    def _check_hope(self, status: SamplerStatus) -> None:
        if status.failed >= HOPELESS and not (status.scored or status.given):
            reason = status.last_failure
            raise AllGroupsFail(
                f"the first {status.failed} groups failed"
                + (f", the last by {reason.blame.value}: {reason.message}" if reason else ""),
                hint=reason.hint if reason else "",
            )

    def metrics(self) -> dict[str, float]:
        """Of the last draw."""
        if self._now is None:
            return {}
        now = self._now
        counts = ("uninformative", "failed", "stale", "decided_early", "carried")
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
        return values

    def _since(self, name: str) -> float:
        before = getattr(self._before, name) if self._before else 0
        return float(getattr(self._now, name) - before)


class AtEnd(TrainerCallback):  # type: ignore[misc]
    """Does `work` on the main process when training ends."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            self._work()


TOO_FEW = ErrorInfo(
    kind="TooFewInformativeGroups",
    blame=Blame.TASK,
    message="fewer informative groups were found before the deadline than the step has room for",
    hint="raise `deadline_s`, or train on tasks that are neither too easy nor too hard",
)
