"""The main process's conversation with the service for one call of `ProRLRollout`: groups are
submitted, followed and cancelled.

Knows no trainer, no rows and no weights.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from prorl_service.client import RolloutClient, ServiceCallError, WaitTimeout
from prorl_service.client.trainable import blamed_on_engines, outage_of
from prorl_service.schemas import Group, Rollout

CANCEL_TIMEOUT_S = 60.0


class ServiceForgot(Exception):
    """The service was restarted: it has forgotten the submitted rollouts and the weights."""


class NewClient(Protocol):
    def __call__(self, retry_s: float | None = None) -> RolloutClient: ...


def run_groups(
    new_client: NewClient,
    groups: Sequence[Group],
    ended: dict[str, Rollout],
    deadline: float,
    new_bar: Callable[[str, int, int], Any],
) -> list[Rollout]:
    """Returns all rollouts in order; cancels the rest at the deadline. Raises `ServiceForgot`.

    Fills `ended` and runs only what is missing there; an exception cancels what is running.
    """
    rollout_ids = [rollout_id for group in groups for rollout_id in group.rollout_ids()]
    bar = new_bar("rollouts", len(rollout_ids), len(ended))
    with new_client() as client, bar:
        try:
            with restarts_noticed():
                client.submit(groups, invalid="fail")
                if ended:
                    client.cancel(list(ended))
                missing = [one for one in rollout_ids if one not in ended]
                for rollout in _received(client, missing, deadline):
                    ended[rollout.rollout_id] = rollout
                    bar.update()
        except BaseException:
            if running := [one for one in rollout_ids if one not in ended]:
                _cancel(new_client, running)
            raise
    _acknowledge(new_client, [group.group_id for group in groups])
    return [ended[rollout_id] for rollout_id in rollout_ids]


def _acknowledge(new_client: NewClient, group_ids: Sequence[str]) -> None:
    """Acknowledges groups, which otherwise expire."""
    with new_client(retry_s=0) as client, suppress(ServiceCallError):
        client.acknowledge(group_ids)


def _cancel(new_client: NewClient, rollout_ids: Sequence[str]) -> None:
    with new_client(retry_s=0) as client, suppress(ServiceCallError):
        client.cancel(rollout_ids)


def _received(
    client: RolloutClient, rollout_ids: Sequence[str], deadline: float
) -> Iterator[Rollout]:
    """Yields each rollout as it ends; cancels the others at the deadline."""
    try:
        yield from client.stream(rollout_ids, deadline - time.monotonic())
    except WaitTimeout as timeout:
        outage = outage_of(client.backends())
        client.cancel(timeout.pending)
        for rollout in client.wait(timeout.pending, CANCEL_TIMEOUT_S):
            yield blamed_on_engines(rollout, outage)


@contextmanager
def restarts_noticed() -> Iterator[None]:
    """Raises `ServiceForgot` if submitted rollouts are unknown, or the training."""
    try:
        yield
    except ServiceCallError as error:
        if error.is_forgotten:
            raise ServiceForgot from error
        raise
