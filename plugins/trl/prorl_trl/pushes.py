"""Pushes of a trainer's policy: when one is due, and which versions the service gave to them.

A collective throughout: all processes call it, and the main one talks to the service.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prorl_service.client import RolloutClient
from prorl_trl.fingerprint import Fingerprint, fingerprint
from prorl_trl.nccl import Broadcaster
from prorl_trl.represented import Representation
from prorl_trl.weights import PolicyWeights, on_main_with, policy_weights, send, send_directory

logger = logging.getLogger(__name__)


class Pushes:
    def __init__(
        self, trainer: Any, new_client: Callable[[], RolloutClient], directory: Path | None
    ) -> None:
        """`directory`: shared with the engines; None sends the weights as the service wants."""
        self._trainer = trainer
        self._new_client = new_client
        self._directory = directory
        self._broadcaster = Broadcaster()
        self._representation = Representation()
        self._pushed: Fingerprint | None = None
        self.own: list[int] = []
        """Versions of all pushes, the newest last."""
        self.current: list[int] = []
        """Versions of the weights that the policy has now: those that were pushed again, too."""

    @property
    def newest(self) -> int | None:
        """Version of the weights pushed last; None if there were none."""
        return self.own[-1] if self.own else None

    def forget(self) -> None:
        """Makes a push due: others may have changed the engines' weights."""
        self._pushed = None

    def push_if_changed(self) -> None:
        found = fingerprint(self._trainer)
        if found is None or found != self._pushed:
            self._push(found)

    def push(self) -> None:
        self._push(fingerprint(self._trainer))

    def push_again(self) -> None:
        """Pushes the weights of the last push to a service that has forgotten them."""
        before = self.current
        self._push(self._pushed)
        self.current = [*before, *self.current]

    def _push(self, found: Fingerprint | None) -> None:
        weights, accelerator = policy_weights(self._trainer), self._trainer.accelerator
        self.own.append(on_main_with(weights, accelerator, lambda: self._send(weights)))
        self.current, self._pushed = self.own[-1:], found

    def _send(self, weights: PolicyWeights) -> int:
        """Returns the version that the service gave them."""
        model = self._trainer.accelerator.unwrap_model(self._trainer.model)
        self._representation.check(model, weights.tensors)
        after = self.newest or 0
        with self._new_client() as client:
            if self._directory is None:
                report = send(client, weights, self._broadcaster, after=after)
            else:
                report = send_directory(client, weights, self._directory, after=after)
        if report.pending:
            text = "engines %s are down; they get weights %d later"
            logger.warning(text, report.pending, report.version)
        return report.version
