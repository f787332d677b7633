"""The switches by name, `PART=WHAT`, and the parts that a service gets by them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from prorl_service.ablations import routers
from prorl_service.ablations.sampling import NothingCancelled, verdict_on_whole
from prorl_service.ablations.stages import InTurn
from prorl_service.errors import ProRLError
from prorl_service.inference.routing import LeastExpectedTime, Router
from prorl_service.pipeline.config import PipelineConfig
from prorl_service.pipeline.stage import StagePool
from prorl_service.rollouts.executor import RolloutExecutor
from prorl_service.sampling.filter import outcome
from prorl_service.sampling.runner import Executor
from prorl_service.sampling.sampler import GroupVerdict

ROUTERS: dict[str, Callable[[], Router]] = {
    "routing=min-heap": routers.MinHeap,
    "routing=round-robin": routers.RoundRobin,
    "routing=hash": routers.ConsistentHash,
    "routing=random": routers.Random,
    "routing=not-sticky": routers.NotSticky,
}
SERIAL = "pipeline=serial"
NO_CLEANUP = "sampler=no-cleanup"
NO_EARLY_VERDICT = "sampler=no-early-verdict"
NAMES = (*ROUTERS, SERIAL, NO_CLEANUP, NO_EARLY_VERDICT)


@dataclass(frozen=True, slots=True)
class Ablations:
    """The parts of a service that switches replace; by default, the service's own."""

    names: tuple[str, ...] = ()
    router: Router = field(default_factory=LeastExpectedTime)
    later_stages: type[StagePool] = StagePool
    """Kind of RUN and EVAL."""
    verdict: GroupVerdict = outcome

    @classmethod
    def named(cls, names: Sequence[str]) -> "Ablations":
        """Raises `ProRLError` for an unknown name, and for two routers."""
        for name in names:
            if name not in NAMES:
                raise ProRLError(f"--ablate {name}: there is none; there are {', '.join(NAMES)}")
        made = [ROUTERS[name]() for name in dict.fromkeys(names) if name in ROUTERS]
        if len(made) > 1:
            raise ProRLError("--ablate: a service has one router", hint="name one `routing=…`")
        return cls(
            tuple(dict.fromkeys(names)),
            made[0] if made else LeastExpectedTime(),
            InTurn if SERIAL in names else StagePool,
            verdict_on_whole if NO_EARLY_VERDICT in names else outcome,
        )

    def pipeline(self, config: PipelineConfig) -> PipelineConfig:
        """Returns the sizes of the pipeline: in turn, there are as many workers as RUN's."""
        if self.later_stages is StagePool:
            return config
        return replace(config, init_workers=config.run_workers, ready_rollouts=1)

    def warm_sandboxes(self, number: int) -> int:
        """Returns the number of sandboxes to start ahead; in turn, nothing is done ahead."""
        return number if self.later_stages is StagePool else 0

    def for_samplers(self, executor: RolloutExecutor) -> Executor:
        return NothingCancelled(executor) if NO_CLEANUP in self.names else executor
