"""What a trainer does with a sampler: give it candidates when it wants some, take what it draws.

For plain code, on `RolloutClient`. Knows no trainer and no data set: candidates are any iterator of
groups, in the order of the data.
"""

from collections.abc import Callable, Iterator
from itertools import islice

from prorl_service.client import RolloutClient
from prorl_service.sampler_schemas import Draw, DrawSpec, DrawState, SamplerSpec, SamplerStatus
from prorl_service.schemas import Group, Rollout

POLL_S = 20.0
"""How long one question for news stays open."""


class Sampler:
    """The sampler `sampler_id`, made if there is none. A context that deletes it at its end."""

    def __init__(
        self,
        client: RolloutClient,
        sampler_id: str,
        spec: SamplerSpec,
        candidates: Iterator[Group],
        on_status: Callable[[SamplerStatus], None] = lambda _: None,
    ) -> None:
        """`on_status` gets the news while a draw is open, and those of its end."""
        self._client = client
        self._sampler_id = sampler_id
        self._spec = spec
        self._candidates = candidates
        self._on_status = on_status

    def __enter__(self) -> "Sampler":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.delete_sampler(self._sampler_id)

    def draw(self, draw_id: str, spec: DrawSpec) -> tuple[Draw, list[list[Rollout]]]:
        """The draw at its end and the rollouts of its groups, which the service may forget then.

        Raises `ServiceCallError`: of status 404 for a service that was restarted without a journal.
        What had not been drawn is lost then; the same draw may be asked for again.
        """
        draw = self._wait(draw_id, spec)
        rollouts = self._fetch(draw)
        if draw.groups:
            self._client.acknowledge([group.group_id for group in draw.groups])
        return draw, rollouts

    def _wait(self, draw_id: str, spec: DrawSpec) -> Draw:
        name, client = self._sampler_id, self._client
        client.create_sampler(name, self._spec)
        status = client.open_draw(name, draw_id, spec)
        while status.draw is not None and status.draw.state is DrawState.OPEN:
            if status.wanted:
                groups = list(islice(self._candidates, status.wanted))
                is_last = len(groups) < status.wanted
                status = client.add_candidates(name, groups, is_last=is_last)
            else:
                status = client.sampler(name, status.revision, POLL_S)
            self._on_status(status)
        self._on_status(status)
        assert status.draw is not None
        return status.draw

    def _fetch(self, draw: Draw) -> list[list[Rollout]]:
        ids = [one for group in draw.groups for one in group.rollout_ids()]
        ended = {one.rollout_id: one for one in self._client.stream(ids, POLL_S)}
        return [[ended[one] for one in group.rollout_ids()] for group in draw.groups]
