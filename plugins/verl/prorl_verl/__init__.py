"""VeRL's rollouts, run by the ProRL rollout service: `rollout=prorl`. See docs/verl.md."""

from prorl_service.client.datasets import task_payload

__all__ = ["task_payload"]
