"""Dynamic sampling: the prompts a trainer gives out are candidates of a sampler of the service, and
each step draws its informative groups from it.

Knows prompts and rollouts; `sampler` knows where rows go.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from prorl_service.client import RolloutClient, ServiceCallError, WaitTimeout
from prorl_service.client.sampling import AllGroupsFail, StepDraws
from prorl_service.client.trainable import outage_of
from prorl_service.schemas import Group, Rollout
from prorl_service.schemas.sampling import Draw, DrawSpec, DrawState, SamplerSpec
from prorl_verl.store import Prompt

logger = logging.getLogger(__name__)

RESTART_DELAY_S = 5.0

Drawn = list[tuple[Prompt, list[Rollout]]]


class DynamicSampling:
    """A trainer's side of a sampler, for the trainer's thread only."""

    def __init__(
        self,
        sampler_id: str,
        spec: SamplerSpec,
        new_client: Callable[[], RolloutClient],
        *,
        deadline_s: float,
        draws_per_step: int,
    ) -> None:
        self._sampler_id = sampler_id
        self._new_client = new_client
        self._draws_per_step = draws_per_step
        self._deadline_s = deadline_s
        self._draws = StepDraws(sampler_id, spec, self._candidates(), deadline_s=deadline_s)
        self._count = 0
        self._prompts: dict[str, Prompt] = {}
        """All prompts that may still be drawn, by uid, in the order in which they came."""
        self._new: deque[str] = deque()
        """Uids of prompts that the service has not been given."""
        self._refill: Callable[[int], object] = lambda _: None

    def put(self, prompts: Iterable[Prompt]) -> None:
        for prompt in prompts:
            self._prompts[prompt.uid] = prompt
            self._new.append(prompt.uid)

    def _candidates(self) -> Iterator[Group]:
        """Yields groups without end: `refill` makes the trainer put another."""
        while True:
            while not self._new:
                self._refill(1)
            prompt = self._prompts[self._new.popleft()]
            yield prompt.group.model_copy(update={"group_id": prompt.uid, "lease_s": None})

    def draw(
        self, target: int, *, version: int, refill: Callable[[int], object]
    ) -> tuple[Drawn, list[Prompt]]:
        """Returns informative groups, and prompts that taught nothing and are not drawn any more.

        `version`: that of the trainer's weights. Returns fewer than `target` at the deadline;
        raises `AllGroupsFail` if there are none.
        """
        self._refill = refill
        self._count += 1
        draw, rollouts = self._draw(
            DrawSpec(target=target, deadline_s=self._deadline_s, policy_version=version)
        )
        if draw.state is DrawState.OVERDUE:
            logger.warning(
                "%d of %d groups were found in prorl.deadline_s=%g",
                len(draw.groups),
                target,
                self._deadline_s,
            )
        if not draw.groups:
            raise self._nothing_found()
        prompts = [self._prompts.pop(group.candidate) for group in draw.groups]
        dropped = [self._prompts.pop(one.candidate) for one in draw.dropped]
        self._new = deque(uid for uid in self._new if uid in self._prompts)
        return list(zip(prompts, rollouts, strict=True)), dropped

    def _nothing_found(self) -> AllGroupsFail:
        with self._new_client() as client:
            outage = outage_of(client.backends())
        if outage is not None:
            return AllGroupsFail(f"no group was found: {outage.message}", hint=outage.hint)
        return AllGroupsFail(
            "no informative group was found",
            hint="train on tasks of medium difficulty",
        )

    def _draw(self, spec: DrawSpec) -> tuple[Draw, list[list[Rollout]]]:
        """Asks again if the service was restarted and knows no draw, or was slow to answer.

        Raises `ServiceCallError`.
        """
        deadline = time.monotonic() + self._deadline_s
        while True:
            try:
                with self._new_client() as client:
                    return self._draws.draw(
                        client,
                        f"draw-{self._count}",
                        spec,
                        is_new_step=self._of_step == 1,
                    )
            except ServiceCallError as error:
                can_pass = error.is_forgotten or isinstance(error, WaitTimeout)
                if not can_pass or time.monotonic() > deadline:
                    raise
                time.sleep(RESTART_DELAY_S)

    @property
    def _of_step(self) -> int:
        """Number of the draw within its step, from 1."""
        return (self._count - 1) % self._draws_per_step + 1

    def metrics(self) -> dict[str, float]:
        """Returns a step's metrics at its last draw only: VeRL averages over a step's draws."""
        return self._draws.metrics() if self._of_step == self._draws_per_step else {}

    @property
    def sampler_id(self) -> str | None:
        """Name of the sampler; None before the first draw makes it."""
        return self._sampler_id if self._count else None
