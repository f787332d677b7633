"""The `prorl` command: starts what the package offers, and turns known errors into one line."""

from pathlib import Path
from typing import Annotated

import typer

from prorl_service import logs
from prorl_service.announcement import announcement
from prorl_service.cli_errors import one_line_errors
from prorl_service.cli_front import front
from prorl_service.cli_images import images
from prorl_service.cli_options import (
    Agents,
    Announce,
    AnnounceHost,
    DrainS,
    Host,
    JournalFile,
    KeepHours,
    KeepMb,
    Log,
    MaxBodyMb,
    MaxUnfinished,
    Port,
    TokenFile,
    Tokenizer,
    Urls,
    journal_path,
)
from prorl_service.cli_serve_options import (
    DefaultImage,
    ImageBudgetGb,
    ImageCacheDirectory,
    JudgeCacheFile,
    JudgeCalls,
    JudgeKeyFile,
    JudgeModel,
    JudgeUrl,
    McpServers,
    McpTools,
    Sandbox,
    WarmSandboxes,
)
from prorl_service.errors import ProRLError
from prorl_service.inference.pool import PoolConfig
from prorl_service.pipeline.journal_tables import Retention
from prorl_service.pipeline.pipeline import PipelineConfig
from prorl_service.rewards.judge import JudgeConfig, take_key
from prorl_service.sandbox.doctor import doctor
from prorl_service.schemas import BackendSpec
from prorl_service.server.app import create_app
from prorl_service.server.auth import take_token
from prorl_service.server.run import run
from prorl_service.server.settings import Settings
from prorl_service.tools.mcp_spec import take_specs

app = typer.Typer(no_args_is_help=True, add_completion=False, help="ProRL rollout service.")
app.add_typer(images, name="images")
app.command()(doctor)
app.command()(front)


Workers = Annotated[int, typer.Option(min=1)]


@app.command()
def serve(
    *,
    host: Host = "127.0.0.1",
    port: Port = 8080,
    backend: Urls = [],  # noqa: B006
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
    warm_sandboxes: WarmSandboxes = 8,
    init_workers: Workers = 8,
    run_workers: Workers = 64,
    eval_workers: Workers = 8,
    ready_rollouts: Annotated[
        int, typer.Option(min=1, help="Rollouts that INIT may finish ahead of RUN.")
    ] = 8,
    wait_for_backend_s: Annotated[
        float, typer.Option(min=0, help="How long a model call waits while no engine is healthy.")
    ] = 60.0,
    max_calls_per_backend: Annotated[
        int, typer.Option(min=1, help="Model calls in flight at one engine; more wait.")
    ] = 256,
    journal: JournalFile = None,
    keep_mb: KeepMb = 4096,
    keep_hours: KeepHours = 168.0,
    max_unfinished: MaxUnfinished = 50_000,
    drain_s: DrainS = 10.0,
    max_body_mb: MaxBodyMb = 64,
    token_file: TokenFile = None,
    announce: Announce = None,
    announce_host: AnnounceHost = None,
    log_format: Log = "text",
) -> None:
    """Run the rollout service."""
    logs.configure(log_format)
    with one_line_errors():
        settings = Settings(
            backends=tuple(BackendSpec(url=url, tokenizer=tokenizer) for url in backend),
            agents=tuple(agent),
            mcp=take_specs(mcp, mcp_tools),
            judge=_judge(judge_url, judge_model, judge_key_file, judge_cache, judge_max_calls),
            sandbox=sandbox,
            default_image=default_image,
            image_cache=image_cache,
            image_budget_bytes=None if image_budget_gb is None else int(image_budget_gb * 1e9),
            warm_sandboxes=warm_sandboxes,
            journal=journal_path(journal, port),
            retention=Retention(keep_bytes=keep_mb * 2**20, keep_s=keep_hours * 3600),
            token=take_token(token_file, host),
            max_body_mb=max_body_mb,
            pipeline=PipelineConfig(
                init_workers=init_workers,
                run_workers=run_workers,
                eval_workers=eval_workers,
                ready_rollouts=ready_rollouts,
                max_unfinished=max_unfinished,
            ),
            pool=PoolConfig(
                wait_for_backend_s=wait_for_backend_s,
                max_calls_per_backend=max_calls_per_backend,
            ),
        )
        announced = announcement(announce, announce_host, host)
        application = create_app(settings)
        run(application, host=host, port=port, drain_s=drain_s, announcement=announced)


@app.command()
def engine(
    *,
    model: Annotated[Path, typer.Option(help="Directory of a transformers causal LM.")],
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8000,
    max_model_len: Annotated[int, typer.Option(min=2, help="Context length.")] = 4096,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of torch.")] = 1,
) -> None:
    """Run the reference inference engine: exact and small, for laptops, CI and demos."""
    with one_line_errors():
        try:
            from prorl_service.inference.engine import serve as serve_engine
        except ImportError as error:
            raise ProRLError(
                f"the engine needs what is not installed: {error}",
                hint="pip install 'prorl-service[engine]'",
            ) from error
        serve_engine(model, host=host, port=port, max_model_len=max_model_len, threads=threads)


def _judge(
    url: str | None, model: str, key_file: Path | None, cache: Path | None, max_calls: int
) -> JudgeConfig | None:
    """Takes the key out of the environment in any case. Raises `ProRLError`."""
    key = take_key(key_file)
    if url is not None:
        return JudgeConfig(url, model, key, cache, max_calls)
    if model or key_file or cache:
        raise ProRLError("a judge needs a URL: --judge-url http://host:port/v1")
    return None


if __name__ == "__main__":
    app()
