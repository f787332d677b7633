"""Tinker's training API on rollouts of the ProRL rollout service: see `TinkerRollouts`."""

from prorl_service.client.failures import RolloutsFailed
from prorl_tinker.engine import TinkerServerLost, lora_training_client
from prorl_tinker.rollouts import TinkerRollouts

__all__ = ["RolloutsFailed", "TinkerRollouts", "TinkerServerLost", "lora_training_client"]
