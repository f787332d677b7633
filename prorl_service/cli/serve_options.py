"""Options of `prorl serve` alone: what it runs rollouts in, and the operator's helpers."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from prorl_service.sandbox import SandboxKind

McpServers = Annotated[
    list[str],
    typer.Option(
        "--mcp",
        metavar="NAME=URL|COMMAND",
        help="MCP server whose tools tasks may choose. Repeatable. Its bearer token, if it has a "
        "URL and wants one, is in PRORL_MCP_KEY_<NAME>.",
    ),
]
McpTools = Annotated[
    list[str],
    typer.Option(
        "--mcp-tools",
        metavar="NAME=TOOL,TOOL",
        help="The only tools of that server to offer; default: all. Repeatable.",
    ),
]
Workers = Annotated[int, typer.Option(min=1)]
ReadyRollouts = Annotated[
    int, typer.Option(min=1, help="Rollouts that INIT may finish ahead of RUN.")
]
MaxAttempts = Annotated[
    int,
    typer.Option(
        min=1,
        help="How often a rollout is begun: again after a failure that a retry may mend, and after "
        "the service's process died.",
    ),
]
OnTimeout = Annotated[
    Literal["grade", "fail"],
    typer.Option(
        help="What becomes of a rollout that used up RUN's budget by its own work: graded like one "
        "that ran out of turns, or failed."
    ),
]
WaitForBackendS = Annotated[
    float, typer.Option(min=0, help="How long a model call waits while no engine is healthy.")
]
MaxCallsPerBackend = Annotated[
    int, typer.Option(min=1, help="Model calls in flight at one engine; more wait.")
]
ReplyFormat = Annotated[
    str | None,
    typer.Option(
        help="Format of the model's reasoning and tool calls, such as 'hermes'; default: the one "
        "that its chat template writes. `prorl check-model` shows it."
    ),
]
JudgeUrl = Annotated[
    str | None,
    typer.Option(help="OpenAI-compatible endpoint, with '/v1', of a judge of short answers."),
]
JudgeModel = Annotated[str, typer.Option(help="Name of the judge's model there.")]
JudgeKeyFile = Annotated[
    Path | None,
    typer.Option(help="File with the judge's key; default: PRORL_JUDGE_KEY, if set."),
]
JudgeCacheFile = Annotated[
    Path | None,
    typer.Option(help="SQLite file that keeps the judge's verdicts; default: in memory."),
]
JudgeCalls = Annotated[int, typer.Option(min=1, help="Calls in flight at the judge; more wait.")]
Sandbox = Annotated[
    SandboxKind,
    typer.Option(
        help="'auto' is apptainer for tasks with an image, bubblewrap for others; "
        "'process' isolates nothing: for tests."
    ),
]
DefaultImage = Annotated[
    str | None, typer.Option(help="Image of tasks that name none; needs Apptainer.")
]
ImageCacheDirectory = Annotated[
    Path | None, typer.Option(help="Directory of the image cache; may be shared by nodes.")
]
ImageBudgetGb = Annotated[
    float | None,
    typer.Option(min=0, help="Most that finished images may take; default: no limit."),
]
WarmPool = Annotated[
    int, typer.Option(min=0, help="Sandboxes started ahead of their rollouts; 0: none.")
]
