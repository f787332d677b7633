"""TRL's GRPOTrainer on rollouts of the ProRL rollout service: see `ProRLRollout`, `with_task`."""

from prorl_service.client.failures import RolloutsFailed
from prorl_trl.convert import with_task
from prorl_trl.rollout import ProRLRollout, ProRLSpec

__all__ = ["ProRLRollout", "ProRLSpec", "RolloutsFailed", "with_task"]
