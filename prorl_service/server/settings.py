"""All settings of one service, as `prorl serve` collects them."""

from dataclasses import dataclass, field
from pathlib import Path

from prorl_service.inference.pool import PoolConfig
from prorl_service.pipeline.pipeline import PipelineConfig
from prorl_service.rewards.judge.judge import JudgeConfig
from prorl_service.rollouts.journal.tables import Retention
from prorl_service.sandbox import SandboxKind
from prorl_service.schemas import BackendSpec
from prorl_service.tools.mcp.spec import McpSpec


@dataclass(frozen=True, slots=True)
class Settings:
    services: Path | None = None
    """Directory of the services that are to do the rollouts; None: this one does them. Of what
    follows, a front needs neither sandboxes and images nor workers."""
    backends: tuple[BackendSpec, ...] = ()
    """Joined at start-up; one that does not answer yet joins when it does."""
    agents: tuple[str, ...] = ()
    """Import paths of additional agents."""
    mcp: tuple[McpSpec, ...] = ()
    """Servers whose tools tasks may choose; each must answer at the start."""
    judge: JudgeConfig | None = None
    """Of short answers, for tasks that want one."""
    sandbox: SandboxKind = "auto"
    default_image: str | None = None
    """Of tasks that name none."""
    image_cache: Path | None = None
    """Directory of the image cache; default: one of this machine's."""
    image_budget_bytes: int | None = None
    """Most that finished images may take in the cache; None is no limit."""
    warm_sandboxes: int = 8
    """Started ahead of their rollouts. 0 starts each when it is asked for."""
    run: str | None = None
    """Name of the training run; None: that of the journal that is resumed, else a new one."""
    journal: Path | None = None
    """File that survives the process; None keeps everything in memory."""
    resume: bool = False
    """Whether to continue the run that the journal holds. Otherwise a journal that holds one is
    refused."""
    retention: Retention = Retention()
    token: str | None = field(default=None, repr=False)
    """Bearer token that every request must bring; None asks for none."""
    allowed_hosts: tuple[str, ...] = ()
    """Names by which the service, and pages that may use it, are known besides loopback's."""
    max_body_mb: int = 64
    """Of one request, streamed weights excepted."""
    pipeline: PipelineConfig = field(default_factory=PipelineConfig)
    pool: PoolConfig = field(default_factory=PoolConfig)
