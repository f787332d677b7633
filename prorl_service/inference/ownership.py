"""The training that a service's policy belongs to, by lease.

One process of one training at a time may push weights, register engines of its own and submit
groups. Whoever held the policy last keeps it until another claims it, so a lease that lapses
unnoticed costs nothing. Knows no weights, engines or groups.
"""

import time
from datetime import datetime

from prorl_service.errors import PolicyTaken, PolicyUnclaimed
from prorl_service.schemas import PolicyClaim, PolicyLease


class PolicyOwner:
    def __init__(self, kept: bytes | None = None) -> None:
        """`kept`: what `to_json` returned in an earlier process, whose lease is renewed."""
        self._claim: PolicyClaim | None = None
        self._since = 0.0
        self._heard_at = time.monotonic()
        self._is_released = False
        if kept is not None:
            lease = PolicyLease.model_validate_json(kept)
            self._claim, self._since = PolicyClaim(training=lease.training), lease.since
            self._is_released = not lease.is_live

    @property
    def training_id(self) -> str | None:
        return None if self._claim is None else self._claim.training.training_id

    @property
    def key(self) -> str | None:
        return None if self._claim is None else self._claim.training.key

    def lease(self) -> PolicyLease | None:
        """Returns the lease as it is now; None before the first claim."""
        if self._claim is None:
            return None
        silent_s = time.monotonic() - self._heard_at
        is_live = not self._is_released and silent_s < self._claim.lease_s
        training = self._claim.training
        return PolicyLease(training=training, since=self._since, silent_s=silent_s, is_live=is_live)

    def to_json(self) -> bytes:
        lease = self.lease()
        assert lease is not None
        return lease.model_dump_json().encode()

    def claim(self, claim: PolicyClaim) -> bool:
        """Gives the policy to a training, or renews its lease; returns whether it has changed
        hands. A later process of the same training always gets it: the training continues there.

        Raises `PolicyTaken` while the lease of another training lives, unless it is taken over;
        and for a process whose training continues in a later one.
        """
        held, training = self.lease(), claim.training
        if held is not None and held.training.key == training.key:
            self._claim = claim
            self.renew(training.key)
            self._is_released = False
            return False
        if held is not None and not _may_have(held, claim):
            raise _taken(held)
        self._claim, self._since = claim, time.time()
        self._heard_at, self._is_released = time.monotonic(), False
        return True

    def renew(self, key: str) -> None:
        if key == self.key:
            self._heard_at = time.monotonic()

    def release(self) -> None:
        """Lets another training have the policy immediately."""
        self._is_released = True

    def check(self, key: str) -> None:
        """Raises `PolicyTaken` if another process holds the policy, `PolicyUnclaimed` if none."""
        held = self.lease()
        if held is None:
            raise PolicyUnclaimed(
                f"training {key} does not hold the policy", hint="claim it: POST /v1/policy"
            )
        if held.training.key != key:
            raise _taken(held)
        self.renew(key)

    def check_weights(self, training_id: str | None) -> None:
        """`training_id`: the training that pushed the newest weights. Raises `PolicyTaken` if it is
        another than the holder: groups would begin with another's policy."""
        if self._claim is not None and self._claim.training.training_id != training_id:
            raise PolicyTaken(
                "the newest weights are not of the training that holds the policy",
                hint="push weights before the first groups, or start a service of its own",
            )


def _may_have(held: PolicyLease, claim: PolicyClaim) -> bool:
    """Returns whether the policy may go from one process to another."""
    if claim.is_renewal:
        return False
    is_same = held.training.training_id == claim.training.training_id
    return is_same or claim.take_over or not held.is_live


def _taken(held: PolicyLease) -> PolicyTaken:
    by, since = held.training, datetime.fromtimestamp(held.since).strftime("%Y-%m-%d %H:%M")
    return PolicyTaken(
        f"the policy belongs to training {by.training_id} (user {by.user}, pid {by.pid} on "
        f"{by.host}) since {since}, last heard of {held.silent_s:.0f} s ago",
        hint="start a service of its own for each training, or stop that one with take_over "
        "(ProRLRollout(take_over=True), prorl.take_over=true)",
    )
