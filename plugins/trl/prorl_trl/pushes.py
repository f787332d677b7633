"""Pushes of a trainer's policy: when one is due, and which versions the service gave to them.

A collective throughout: all processes call it, and the main one talks to the service.
"""

from pathlib import Path
from typing import Any

from prorl_service.client.trainers_service import TrainersService
from prorl_trl.fingerprint import Fingerprint, fingerprint
from prorl_trl.processes import on_main
from prorl_trl.weights import PolicyWeights, WeightsSender, on_main_with, policy_weights

KEPT_AS = "prorl_training"
"""Key of the training's id in the trainer's state, which its checkpoints keep."""


def claim(service: TrainersService, trainer: Any) -> bool:
    """Claims the policy for the training that the trainer's checkpoint belongs to. Returns and
    raises like `TrainersService.claim`."""
    kept = trainer.state.stateful_callbacks
    is_new = service.claim(kept.get(KEPT_AS, {}).get("attributes", {}).get("training_id"))
    kept[KEPT_AS] = {"args": {}, "attributes": {"training_id": service.training_id}}
    return is_new


class Pushes:
    def __init__(
        self,
        trainer: Any,
        service: TrainersService,
        directory: Path | None,
        *,
        is_automatic: bool,
        holds_policy: bool,
    ) -> None:
        """`directory`: shared with the engines; None sends the weights as the service wants.
        `is_automatic`: False leaves all but `push` to others. `holds_policy`: False for a trainer
        without a service."""
        self._trainer, self._service = trainer, service
        self._sender = WeightsSender(service, directory)
        self._is_automatic, self._holds_policy = is_automatic, holds_policy
        self._pushed: Fingerprint | None = None
        self.own: list[int] = []
        """Versions of all pushes, the newest last."""
        self.current: list[int] = []
        """Versions of the weights that the policy has now: those that were pushed again, too."""

    @property
    def newest(self) -> int | None:
        """Version of the weights pushed last; None if there were none."""
        return self.own[-1] if self.own else None

    def push_if_changed(self) -> None:
        """Holds the policy, and pushes it if the engines may have another one."""
        self._hold()
        if self._is_automatic:
            found = fingerprint(self._trainer)
            if found is None or found != self._pushed:
                self._push(found)

    def push(self) -> None:
        if self._holds_policy:
            self._hold()
            self._push(fingerprint(self._trainer))

    def push_again(self) -> None:
        """Pushes the weights of the last push to a service that has forgotten them."""
        self._hold()
        if self._is_automatic:
            before = self.current
            self._push(self._pushed)
            self.current = [*before, *self.current]

    def _hold(self) -> None:
        """Makes a push due if another training may have had the policy before it is claimed."""
        trainer = self._trainer
        if self._holds_policy and on_main(
            trainer.accelerator, lambda: claim(self._service, trainer)
        ):
            self._pushed = None

    def _push(self, found: Fingerprint | None) -> None:
        weights, accelerator = policy_weights(self._trainer), self._trainer.accelerator
        self.own.append(on_main_with(weights, accelerator, lambda: self._send(weights)))
        self.current, self._pushed = self.own[-1:], found

    def _send(self, weights: PolicyWeights) -> int:
        """Returns the version that the service gave them."""
        model = self._trainer.accelerator.unwrap_model(self._trainer.model)
        return self._sender.send(weights, model, after=self.newest or 0)
