"""Tinker's training API on rollouts of the ProRL rollout service: see `TinkerRollouts`."""

from prorl_service.client.failures import RolloutsFailed
from prorl_tinker.engine import TinkerServerLost
from prorl_tinker.rollouts import StepData, TinkerRollouts

__all__ = ["RolloutsFailed", "StepData", "TinkerRollouts", "TinkerServerLost"]
