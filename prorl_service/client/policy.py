"""A training's hold of a service's policy: claimed when the training starts, renewed while its
process lives, and released when it ends.

Sends no weights and no groups: those carry the `key` of the training. What a trainer measures is
reported by the holder alone, too.
"""

import atexit
import getpass
import json
import logging
import math
import os
import socket
import threading
import uuid
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any, Self

from prorl_service.client.errors import ServiceCallError
from prorl_service.client.http import RolloutClient
from prorl_service.errors import PolicyTaken, ProRLError
from prorl_service.schemas import PolicyClaim, TrainingIdentity
from prorl_service.schemas.history import TrainerStep

logger = logging.getLogger(__name__)

LEASE_S = 60.0
RENEW_S = 10.0
RELEASE_S = 3.0
REPORT_S = 3.0
FIRST_CONTACT_S = 30.0
KEPT_IN = "prorl_training.json"
"""File with a training's id, next to its checkpoints."""


_held: "dict[str, HeldPolicy]" = {}
"""Policies that this process holds, keyed by the URL of the service."""


class HeldPolicy:
    """Use it as a context manager, or `claim` and `release` it. A later one of the same process
    takes its place."""

    def __init__(
        self,
        url: str,
        training_id: str | None = None,
        *,
        token: str | None = None,
        take_over: bool = False,
        kept_in: Path | None = None,
    ) -> None:
        """`url`, `token`: as for `RolloutClient`. `training_id`: that of an earlier process, if the
        training continues. `take_over`: ends another training that holds the policy. `kept_in`:
        directory of checkpoints, in which to leave the id."""
        self._url = url
        self._take_over = take_over
        self._kept_in = kept_in
        self._ended = threading.Event()
        self._lost: PolicyTaken | None = None
        self._is_unreported = False
        """True once a step could not be reported."""
        self.training = TrainingIdentity(
            training_id=training_id or uuid.uuid4().hex[:12],
            process_id=uuid.uuid4().hex[:8],
            host=socket.gethostname(),
            pid=os.getpid(),
            user=_user(),
        )
        self._new_client = partial(RolloutClient, url, token=token, training=self.key)

    @property
    def key(self) -> str:
        return self.training.key

    def claim(self) -> Self:
        """Raises `PolicyTaken` if another training holds the policy; `ServiceCallError`."""
        if (earlier := _held.pop(self._url, None)) is not None:
            earlier.release()
        claim = PolicyClaim(training=self.training, lease_s=LEASE_S, take_over=self._take_over)
        with self._new_client(retry_s=FIRST_CONTACT_S) as client:
            _ask(client, claim)
        if self._kept_in is not None:
            _keep(self._kept_in, self.training.training_id)
        _held[self._url] = self
        atexit.register(self.release)  # a training that failed may be started again immediately
        threading.Thread(target=self._renew, name="prorl policy", daemon=True).start()
        return self

    @property
    def is_held(self) -> bool:
        """True from the claim to the release."""
        return _held.get(self._url) is self

    def check(self) -> None:
        """Raises `PolicyTaken` if another training has taken the policy since."""
        if self._lost is not None:
            raise self._lost

    def claim_again(self) -> None:
        """Claims the policy of a service that was restarted and has forgotten the training. Raises
        like `claim`."""
        with self._new_client() as client:
            _ask(client, PolicyClaim(training=self.training, lease_s=LEASE_S, is_renewal=True))

    def report(self, step: int, metrics: Mapping[str, Any], version: int | None = None) -> None:
        """Sends the trainer's own metrics of a step to be shown: those that are finite numbers.
        `version`: see `TrainerStep`. A failure stops nothing: the first one is a warning."""
        numbers = {name: float(one) for name, one in metrics.items() if _is_finite(one)}
        if self._ended.is_set() or not numbers:
            return
        try:
            report = TrainerStep(step=step, policy_version=version, metrics=numbers)
            with self._new_client(retry_s=0, idle_s=REPORT_S) as client:
                client.report_step(report)
        except (ProRLError, ValueError) as error:
            level = logging.INFO if self._is_unreported else logging.WARNING
            logger.log(level, "metrics of step %d are not on the service's page: %s", step, error)
            self._is_unreported = True

    def release(self) -> None:
        """Lets another training have the policy; what the service does not learn ends with the
        lease."""
        self._ended.set()
        atexit.unregister(self.release)
        if _held.get(self._url) is self:
            del _held[self._url]
        try:
            with self._new_client(retry_s=0, idle_s=RELEASE_S) as client:
                client.release_policy()
        except ServiceCallError as error:
            logger.info("%s was not told that the training has ended: %s", self._url, error)

    def __enter__(self) -> Self:
        return self.claim()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _renew(self) -> None:
        renewal = PolicyClaim(training=self.training, lease_s=LEASE_S, is_renewal=True)
        while not self._ended.wait(RENEW_S):
            try:
                with self._new_client(retry_s=0) as client:
                    _ask(client, renewal)
            except PolicyTaken as error:
                logger.error("%s", error)
                self._lost = error
                return
            except ServiceCallError as error:
                logger.info("the lease of the policy is not renewed: %s", error)


def _ask(client: RolloutClient, claim: PolicyClaim) -> None:
    """Raises `PolicyTaken` in one line, with what to do."""
    try:
        client.claim_policy(claim)
    except ServiceCallError as error:
        if error.error.kind != PolicyTaken.__name__:
            raise
        raise PolicyTaken(f"{error.error.message}: {error.hint}", hint=error.hint) from None


def _is_finite(value: object) -> bool:
    return isinstance(value, Real) and math.isfinite(value)


def kept_training_id(directory: Path) -> str | None:
    """Returns the id that an earlier process of the training has left; None if there is none."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads((directory / KEPT_IN).read_text())["training_id"])
    return None


def _keep(directory: Path, training_id: str) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / KEPT_IN).write_text(json.dumps({"training_id": training_id}))
    except OSError as error:
        logger.warning("the training's id is not kept in %s: %s", directory, error)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without an entry for the user
        return str(os.getuid())
