"""The service as one trainer uses it: clients, the hold of its policy, and groups that run there.

Blocking, for one process of the trainer. Knows no rows and no weights; `policy` renews the lease.
"""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from prorl_service.client.calls import Wire
from prorl_service.client.errors import ServiceCallError
from prorl_service.client.http import RolloutClient
from prorl_service.client.policy import HeldPolicy
from prorl_service.schemas import Group, Rollout

LEASE_S = 300.0
"""Seconds that the service continues without a trainer, before it reclaims its rollouts."""


class ServiceForgot(Exception):
    """The service was restarted: it has forgotten the submitted rollouts and the weights."""


class TrainersService:
    """Clients of one start of a trainer, and the policy that it holds."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None,
        wire: Wire = "packed",
        deadline_s: float,
        take_over: bool = False,
        held: HeldPolicy | None = None,
    ) -> None:
        """`deadline_s`: how long calls are retried. `held`: the policy, if it is not `claim`ed."""
        self.url, self.deadline_s = url, deadline_s
        self.run_id = uuid.uuid4().hex[:12]
        self._token, self._wire, self._take_over = token, wire, take_over
        self._held = held

    def client(self, retry_s: float | None = None) -> RolloutClient:
        return RolloutClient(**self.client_options(retry_s))

    def client_options(self, retry_s: float | None = None) -> dict[str, Any]:
        return {
            "url": self.url,
            "token": self._token,
            "retry_s": self.deadline_s if retry_s is None else retry_s,
            "wire": self._wire,
            "training": None if self._held is None else self._held.key,
        }

    def tell(self, work: Callable[[RolloutClient], object]) -> None:
        """Does `work` without retries. What the service does not learn ends with its lease."""
        with self.client(retry_s=0) as client, suppress(ServiceCallError):
            work(client)

    @property
    def training_id(self) -> str | None:
        """Id of the training that holds the policy; None before it is claimed."""
        return None if self._held is None else self._held.training.training_id

    def claim(self, training_id: str | None = None) -> bool:
        """Claims the policy for a training, None for the last one or a new one; also again from a
        service that has forgotten it. Returns whether another training may have had it since the
        last time. Raises `PolicyTaken`."""
        held, training_id = self._held, training_id or self.training_id
        if held is None or not held.is_held or training_id != held.training.training_id:
            options: dict[str, Any] = {"token": self._token, "take_over": self._take_over}
            self._held = HeldPolicy(self.url, training_id, **options).claim()
            return True
        held.check()
        held.claim_again()
        return False

    def report(self, step: int, metrics: Mapping[str, Any], version: int | None = None) -> None:
        """See `HeldPolicy.report`; does nothing without a service."""
        if self._held is not None:
            self._held.report(step, metrics, version)

    def release(self) -> None:
        if self._held is not None:
            self._held.release()


def run_groups(
    service: TrainersService,
    groups: Sequence[Group],
    ended: dict[str, Rollout],
    deadline: float,
    on_end: Callable[[], object] = lambda: None,
) -> list[Rollout]:
    """Returns all rollouts in order; cancels the rest at the deadline. Raises `ServiceForgot`.

    Fills `ended` and runs only what is missing there; an exception cancels what is running.
    `on_end` is called for each rollout that ends.
    """
    rollout_ids = [rollout_id for group in groups for rollout_id in group.rollout_ids()]
    with service.client() as client:
        try:
            with restarts_noticed():
                client.submit(groups, invalid="fail")
                if ended:
                    client.cancel(list(ended))
                missing = [one for one in rollout_ids if one not in ended]
                for rollout in client.finish(missing, deadline - time.monotonic()):
                    ended[rollout.rollout_id] = rollout
                    on_end()
        except BaseException:
            if running := [one for one in rollout_ids if one not in ended]:
                service.tell(lambda client: client.cancel(running))
            raise
    # Groups that are not acknowledged expire.
    service.tell(lambda client: client.acknowledge([group.group_id for group in groups]))
    return [ended[rollout_id] for rollout_id in rollout_ids]


@contextmanager
def restarts_noticed() -> Iterator[None]:
    """Raises `ServiceForgot` if submitted rollouts are unknown, or the training."""
    try:
        yield
    except ServiceCallError as error:
        if error.is_forgotten:
            raise ServiceForgot from error
        raise
