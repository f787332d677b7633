"""VeRL's rollouts, run by the ProRL rollout service: `rollout=prorl`. See docs/verl.md."""

from prorl_service.task_payload import task_payload

__all__ = ["task_payload"]
