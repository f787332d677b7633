"""A trainer's hold of the service's policy, for the training that its checkpoint belongs to.

On the main process only. `client.policy` renews the lease.
"""

from typing import Any

from prorl_service.client.policy import HeldPolicy

KEPT_AS = "prorl_training"
"""Key of the training's id in the trainer's state, which its checkpoints keep."""


class TrainersPolicy:
    def __init__(self, url: str, *, token: str | None, take_over: bool) -> None:
        self._url, self._token, self._take_over = url, token, take_over
        self._held: HeldPolicy | None = None

    @property
    def key(self) -> str | None:
        """Name of the training in requests; None before it is claimed."""
        return None if self._held is None else self._held.key

    def claim(self, trainer: Any) -> bool:
        """Claims the policy, also again from a service that has forgotten the training. Returns
        whether another may have had it since the last time. Raises `PolicyTaken`."""
        kept = trainer.state.stateful_callbacks
        training_id = kept.get(KEPT_AS, {}).get("attributes", {}).get("training_id")
        held = self._held
        if training_id is None and held is not None:
            training_id = held.training.training_id
        is_held = held is not None and held.is_held and training_id == held.training.training_id
        if held is None or not is_held:
            held = HeldPolicy(self._url, training_id, token=self._token, take_over=self._take_over)
            self._held = held.claim()
        else:
            held.check()
            held.claim_again()
        kept[KEPT_AS] = {"args": {}, "attributes": {"training_id": held.training.training_id}}
        return not is_held

    def release(self) -> None:
        if self._held is not None:
            self._held.release()
