"""Sources of AsyncGRPOTrainer's groups: kept in flight here, or drawn from a sampler.

Both take groups from an iterator when they begin them and hand each over once, when it has ended.
They know no trainer and no thread: the owner calls `next` and finally `close`; `cancel` may be
called from any thread, and makes `next` return soon.
"""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from prorl_service.client import RolloutClient, ServiceCallError, WaitTimeout
from prorl_service.client.datasets import rows_without_end
from prorl_service.client.sampling import HOPELESS, MIN_LEASE_S, SamplerClient, all_failed
from prorl_service.schemas import Group, Rollout
from prorl_service.schemas.sampling import DrawSpec, SamplerSpec, SamplerStatus
from prorl_trl.convert import PAYLOAD_KEY

POLL_S = 10.0
"""Seconds after which `next` returns None, so that the worker hears from an idle service too."""

EndedGroup = tuple[str, list[Rollout]]
"""Name given to the group when it began, and all of its rollouts in order."""


class PromptGroups:
    """Endless iterator of groups, one for each prompt of the dataset in turn.

    A group's name holds its number and the version of the weights when it began.
    """

    def __init__(self, dataset: Any, group_of: Callable[[str, Any], Group], *, run_id: str) -> None:
        """`group_of` gets a name and a prompt."""
        self.version = 0
        self.dataset = dataset
        self._group_of = group_of
        self._run_id = run_id
        self._rows = enumerate(rows_without_end(dataset, seed=None))

    def __iter__(self) -> "PromptGroups":
        return self

    def __next__(self) -> Group:
        number, row = next(self._rows)
        return self._group_of(f"{self._run_id}-{number}-{self.version}", row["prompt"])

    @staticmethod
    def number_and_version(name: str) -> tuple[int, int]:
        _, number, version = name.rsplit("-", 2)
        return int(number), int(version)

    def prompt(self, number: int) -> list[dict[str, Any]]:
        """Returns a prompt for people to read; empty for a stream, which has no random access."""
        if not hasattr(self.dataset, "__len__"):
            return []
        messages = self.dataset[number % len(self.dataset)]["prompt"]
        return [
            {key: value for key, value in message.items() if key != PAYLOAD_KEY}
            for message in messages
        ]


class GroupSource(Protocol):
    def next(self, waiting: int) -> EndedGroup | None:
        """Returns an ended group, or None soon. `waiting`: samples not yet taken by the trainer."""

    def cancel(self, client: RolloutClient) -> None:
        """Cancels everything in flight."""

    def close(self, client: RolloutClient) -> None:
        """Abandons everything in flight."""


class InflightGroups:
    """Source that keeps groups in flight while there is room; waiting samples take up room, too."""

    def __init__(
        self, client: RolloutClient, groups: Iterator[Group], *, max_rollouts: int
    ) -> None:
        self._client = client
        self._groups = groups
        self._max_rollouts = max_rollouts
        self._inflight: dict[str, Group] = {}
        self._ended: dict[str, Rollout] = {}

    def next(self, waiting: int) -> EndedGroup | None:
        self._begin(waiting)
        try:
            for rollout in self._client.stream(self._missing(), POLL_S):
                self._ended[rollout.rollout_id] = rollout
                group = self._inflight[rollout.group_id]
                if all(rollout_id in self._ended for rollout_id in group.rollout_ids()):
                    del self._inflight[group.group_id]
                    self._client.acknowledge([group.group_id])
                    return group.group_id, [self._ended.pop(one) for one in group.rollout_ids()]
        except WaitTimeout:
            pass
        except ServiceCallError as error:
            if error.http_status != 404:
                raise
            # The service was restarted and remembers nothing.
            self._ended.clear()
            self._client.submit(list(self._inflight.values()), invalid="fail")
        return None

    def _begin(self, waiting: int) -> None:
        room = self._max_rollouts - waiting - sum(one.n for one in self._inflight.values())
        begun: list[Group] = []
        while room > 0:
            group = next(self._groups)
            room -= group.n
            begun.append(group)
        if begun:
            self._inflight |= {group.group_id: group for group in begun}
            self._client.submit(begun, invalid="fail")

    def _missing(self) -> list[str]:
        ids = [one for group in list(self._inflight.values()) for one in group.rollout_ids()]
        return [one for one in ids if one not in self._ended]

    def cancel(self, client: RolloutClient) -> None:
        if missing := self._missing():
            client.cancel(missing)

    def close(self, client: RolloutClient) -> None:
        self.cancel(client)
        if self._inflight:
            client.acknowledge(list(self._inflight))


class DrawnGroups:
    """Source for dynamic sampling: the service itself leaves out groups that teach nothing.

    Groups are drawn one by one, just in time: those found ahead wait at the service, which starts
    stale ones again.
    """

    def __init__(
        self,
        client: RolloutClient,
        groups: Iterator[Group],
        *,
        sampler_id: str,
        spec: SamplerSpec,
        max_waiting: int,
        on_news: Callable[[dict[str, float]], None],
    ) -> None:
        """Nothing is drawn while the trainer has `max_waiting` samples to take. `on_news` gets
        metrics, each time the sampler has news."""
        self._sampler_id = sampler_id
        self._sampler = SamplerClient(client, sampler_id, spec, groups, self._note)
        self._max_waiting = max_waiting
        self._on_news = on_news
        self._draws = 0
        self._status: SamplerStatus | None = None
        self._failed_in_a_row = 0

    def next(self, waiting: int) -> EndedGroup | None:
        if waiting >= self._max_waiting:
            return None
        try:
            draw, drawn = self._sampler.draw(f"draw-{self._draws}", DrawSpec(target=1))
        except WaitTimeout:
            return None  # it is fetched again
        except ServiceCallError as error:
            if error.http_status != 404:
                raise
            self._status = None
            return None  # the service was restarted and remembers nothing: it is drawn again
        self._draws += 1
        return draw.groups[0].candidate, drawn[0]

    def cancel(self, client: RolloutClient) -> None:
        client.delete_sampler(self._sampler_id)

    def close(self, client: RolloutClient) -> None:
        self.cancel(client)

    def _note(self, status: SamplerStatus) -> None:
        """Raises `AllGroupsFail`."""
        counts = ("given", "uninformative", "failed", "stale", "decided_early")
        before = self._status or status.model_copy(update=dict.fromkeys(counts, 0))
        new = {name: max(0, getattr(status, name) - getattr(before, name)) for name in counts}
        self._status = status
        is_hopeful = new.pop("given") or new["uninformative"] or status.informative
        self._failed_in_a_row = 0 if is_hopeful else self._failed_in_a_row + new["failed"]
        if self._failed_in_a_row >= HOPELESS:
            raise all_failed(f"{self._failed_in_a_row} groups in a row failed", status)
        metrics = {f"prorl/sampling/{name}_total": float(count) for name, count in new.items()}
        if status.score_mean is not None:
            metrics["prorl/sampling/unfiltered_reward"] = status.score_mean
        self._on_news(metrics)


def sampler_spec(asked: SamplerSpec, *, max_groups: int, max_staleness: int) -> SamplerSpec:
    """Completes `asked` from the trainer's settings.

    A sample ages once more while it waits for the trainer.
    """
    open_ones = {
        "groups_at_once": max_groups,
        "groups_ahead": max_groups,
        "max_staleness": max(0, max_staleness - 1),
        "lease_s": MIN_LEASE_S,
    }
    return SamplerSpec.model_validate(open_ones | asked.model_dump(exclude_unset=True))
