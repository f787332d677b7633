"""The service as one trainer uses it: clients, the hold of its policy, and groups that run there.

On the main process only. Knows no rows and no weights; `client.policy` renews the lease.
"""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from prorl_service.client import RolloutClient, ServiceCallError, Wire
from prorl_service.client.policy import HeldPolicy
from prorl_service.schemas import Group, Rollout

KEPT_AS = "prorl_training"
"""Key of the training's id in the trainer's state, which its checkpoints keep."""


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
        return RolloutClient(
            self.url,
            token=self._token,
            retry_s=self.deadline_s if retry_s is None else retry_s,
            wire=self._wire,
            training=None if self._held is None else self._held.key,
        )

    def tell(self, work: Callable[[RolloutClient], object]) -> None:
        """Does `work` without retries. What the service does not learn ends with its lease."""
        with self.client(retry_s=0) as client, suppress(ServiceCallError):
            work(client)

    def claim(self, trainer: Any) -> bool:
        """Claims the policy for the training that the trainer's checkpoint belongs to, also again
        from a service that has forgotten it. Returns whether another training may have had it since
        the last time. Raises `PolicyTaken`."""
        kept, held = trainer.state.stateful_callbacks, self._held
        training_id = kept.get(KEPT_AS, {}).get("attributes", {}).get("training_id")
        if training_id is None and held is not None:
            training_id = held.training.training_id
        is_held = held is not None and held.is_held and training_id == held.training.training_id
        if held is None or not is_held:
            options: dict[str, Any] = {"token": self._token, "take_over": self._take_over}
            held = self._held = HeldPolicy(self.url, training_id, **options).claim()
        else:
            held.check()
            held.claim_again()
        kept[KEPT_AS] = {"args": {}, "attributes": {"training_id": held.training.training_id}}
        return not is_held

    def report(self, step: int, metrics: Mapping[str, Any]) -> None:
        """See `HeldPolicy.report`; does nothing without a service."""
        if self._held is not None:
            self._held.report(step, metrics)

    def release(self) -> None:
        if self._held is not None:
            self._held.release()


def run_groups(
    service: TrainersService,
    groups: Sequence[Group],
    ended: dict[str, Rollout],
    deadline: float,
    bar: Any,
) -> list[Rollout]:
    """Returns all rollouts in order; cancels the rest at the deadline. Raises `ServiceForgot`.

    Fills `ended` and runs only what is missing there; an exception cancels what is running.
    """
    rollout_ids = [rollout_id for group in groups for rollout_id in group.rollout_ids()]
    with service.client() as client, bar:
        try:
            with restarts_noticed():
                client.submit(groups, invalid="fail")
                if ended:
                    client.cancel(list(ended))
                missing = [one for one in rollout_ids if one not in ended]
                for rollout in client.finish(missing, deadline - time.monotonic()):
                    ended[rollout.rollout_id] = rollout
                    bar.update()
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
