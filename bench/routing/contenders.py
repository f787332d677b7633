"""The contenders, by name: our router, and the policies of others."""

from collections.abc import Callable

from bench.ablation.routers import ConsistentHash, MinHeap, RoundRobin
from prorl_service.inference.routing import LeastExpectedTime, Router

OURS = "ours"
MIN_HEAP = "min-heap of task counts"
POLICIES: dict[str, Callable[[], Router]] = {
    OURS: LeastExpectedTime,
    MIN_HEAP: MinHeap,
    "consistent hash": ConsistentHash,
    "round robin": RoundRobin,
}
