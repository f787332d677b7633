"""`prorl serve`: the rollout service."""

from pathlib import Path

from prorl_service.cli.errors import one_line_errors
from prorl_service.cli.options import (
    Agents,
    AllowHost,
    Announce,
    AnnounceHost,
    BackendKeyFile,
    DrainS,
    Host,
    JournalFile,
    KeepHours,
    KeepMb,
    Log,
    MaxBodyMb,
    MaxConnections,
    MaxUnfinished,
    NoToken,
    Port,
    Resume,
    Run,
    TokenFile,
    Tokenizer,
    Urls,
    backends,
    retention,
    run_options,
)
from prorl_service.cli.serve_options import (
    DefaultImage,
    ImageBudgetGb,
    ImageCacheDirectory,
    JudgeCacheFile,
    JudgeCalls,
    JudgeKeyFile,
    JudgeModel,
    JudgeUrl,
    MaxAttempts,
    MaxCallsPerBackend,
    McpServers,
    McpTools,
    OnTimeout,
    ReadyRollouts,
    ReplyFormat,
    Sandbox,
    WaitForBackendS,
    WarmPool,
    Workers,
)
from prorl_service.errors import ProRLError
from prorl_service.front.discovery import announcement
from prorl_service.inference.pool import PoolConfig
from prorl_service.net.credentials import take_key
from prorl_service.pipeline.pipeline import PipelineConfig
from prorl_service.rewards.judge.judge import KEY_VARIABLE, JudgeConfig
from prorl_service.server.app import create_app
from prorl_service.server.auth import take_token
from prorl_service.server.run import ServerOptions, run
from prorl_service.server.settings import Settings
from prorl_service.tools.mcp.spec import take_specs
from prorl_service.utils import logs


def serve(
    *,
    host: Host = "127.0.0.1",
    port: Port = 8080,
    backend: Urls = [],  # noqa: B006
    backend_key_file: BackendKeyFile = None,
    tokenizer: Tokenizer = None,
    agent: Agents = [],  # noqa: B006
    mcp: McpServers = [],  # noqa: B006
    mcp_tools: McpTools = [],  # noqa: B006
    judge_url: JudgeUrl = None,
    judge_model: JudgeModel = "",
    judge_key_file: JudgeKeyFile = None,
    judge_cache: JudgeCacheFile = None,
    judge_max_calls: JudgeCalls = 16,
    sandbox: Sandbox = "auto",
    default_image: DefaultImage = None,
    image_cache: ImageCacheDirectory = None,
    image_budget_gb: ImageBudgetGb = None,
    warm_sandboxes: WarmPool = 8,
    init_workers: Workers = 8,
    run_workers: Workers = 64,
    eval_workers: Workers = 8,
    ready_rollouts: ReadyRollouts = 8,
    max_attempts: MaxAttempts = 3,
    on_timeout: OnTimeout = "grade",
    wait_for_backend_s: WaitForBackendS = 60.0,
    max_calls_per_backend: MaxCallsPerBackend = 256,
    reply_format: ReplyFormat = None,
    run_name: Run = None,
    journal: JournalFile = None,
    resume: Resume = False,
    keep_mb: KeepMb = 4096,
    keep_hours: KeepHours = 168.0,
    max_unfinished: MaxUnfinished = 50_000,
    drain_s: DrainS = 10.0,
    max_body_mb: MaxBodyMb = 64,
    max_connections: MaxConnections = 4096,
    token_file: TokenFile = None,
    no_token: NoToken = False,
    allow_host: AllowHost = [],  # noqa: B006
    announce: Announce = None,
    announce_host: AnnounceHost = None,
    log_format: Log = "text",
) -> None:
    """Run the rollout service."""
    logs.configure(log_format)
    with one_line_errors():
        of_run = run_options(run_name, journal, resume=resume)
        settings = Settings(
            backends=backends(backend, tokenizer, backend_key_file),
            agents=tuple(agent),
            mcp=take_specs(mcp, mcp_tools),
            judge=_judge(judge_url, judge_model, judge_key_file, judge_cache, judge_max_calls),
            sandbox=sandbox,
            default_image=default_image,
            image_cache=image_cache,
            image_budget_bytes=None if image_budget_gb is None else int(image_budget_gb * 1e9),
            warm_sandboxes=warm_sandboxes,
            run=of_run.run,
            journal=of_run.journal,
            resume=of_run.resume,
            retention=retention(keep_mb, keep_hours),
            token=take_token(token_file, host, is_off=no_token),
            allowed_hosts=tuple(allow_host),
            max_body_mb=max_body_mb,
            pipeline=PipelineConfig(
                init_workers=init_workers,
                run_workers=run_workers,
                eval_workers=eval_workers,
                ready_rollouts=ready_rollouts,
                max_attempts=max_attempts,
                on_timeout=on_timeout,
                max_unfinished=max_unfinished,
            ),
            pool=_pool(wait_for_backend_s, max_calls_per_backend, reply_format),
        )
        announced = announcement(announce, announce_host, host)
        run(create_app(settings), ServerOptions(host, port, drain_s, max_connections, announced))


def _pool(wait_s: float, max_calls: int, reply_format: str | None) -> PoolConfig:
    return PoolConfig(
        wait_for_backend_s=wait_s, max_calls_per_backend=max_calls, reply_format=reply_format
    )


def _judge(
    url: str | None, model: str, key_file: Path | None, cache: Path | None, max_calls: int
) -> JudgeConfig | None:
    """Takes the key out of the environment in any case. Raises `ProRLError`."""
    key = take_key(KEY_VARIABLE, key_file, "the judge's key")
    if url is not None:
        return JudgeConfig(url, model, key, cache, max_calls)
    if model or key_file or cache:
        raise ProRLError("a judge needs a URL: --judge-url http://host:port/v1")
    return None
