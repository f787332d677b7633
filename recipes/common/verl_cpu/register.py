"""Makes verl train on a CPU: for VERL_USE_EXTERNAL_MODULES, after `device`, in every process.

Registers the rollout `tiny` and, because torch refuses the backend string that verl builds for a
CPU ("cpu:gloo,cpu:gloo"), calls verl's process-group set-up with gloo. Changes nothing else in
verl.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from verl.utils import distributed
from verl.workers.rollout.base import _ROLLOUT_REGISTRY
from verl.workers.rollout.replica import RolloutReplicaRegistry

ROLLOUT = "tiny"


def _with_gloo(set_up: Callable[..., None]) -> Callable[..., None]:
    @wraps(set_up)
    def with_gloo(timeout_second: int | None = None, backend: str | None = None) -> None:
        set_up(timeout_second=timeout_second, backend=backend or "gloo")

    return with_gloo


def _replica() -> type[Any]:
    from recipes.common.verl_cpu.replica import TinyReplica

    return TinyReplica


distributed.initialize_global_process_group_ray = _with_gloo(
    distributed.initialize_global_process_group_ray
)
_ROLLOUT_REGISTRY[ROLLOUT, "async"] = "recipes.common.verl_cpu.replica.TinyRollout"
RolloutReplicaRegistry.register(ROLLOUT, _replica)
