"""The `prorl` command: its subcommands by name, each imported on use, so that help is fast.

Options come from the command line, else from environment variables (`PRORL_SERVE_RUN_WORKERS=8`),
else from the file that `--config` names.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import App, Group, Parameter
from cyclopts.config import Dict, Env

from prorl_service import __version__
from prorl_service.cli.program import DEFAULTS, one_line_errors, options_in

COMMANDS = {
    "Begin": {
        "init": ("init:init", "Begin a project of your own."),
        "doctor": ("doctor:doctor", "List the sandboxes that this host supports."),
        "install": ("install:install", "Install what sandboxes need."),
        "try": ("try_agent:try_agent", "Try an agent on one task, without a service."),
        "check": ("check:check", "Check a data set's tasks before training."),
        "judge": ("judge:judge", "Measure how judges agree with labels."),
        "check-model": ("model:check_model", "Show how a model's chats are read."),
        "warm-start": ("warm_start:warm_start", "Have a model imitate rollouts before training."),
    },
    "Run": {
        "serve": ("serve:serve", "Run the rollout service."),
        "engine": ("engine:engine", "Run the reference inference engine."),
        "front": ("serve:front", "Put one address in front of several services."),
        "ray": ("ray:ray", "Run services on all nodes of a Ray cluster."),
        "backup": ("backup:backup", "Copy a journal and what belongs to it."),
        "token": ("token:token", "Print your token; make tokens for others."),
    },
    "Look": {
        "open": ("generated:open_page", "Open a service's page, signed in."),
        "status": ("status:status", "Show what a service is doing."),
        "top": ("top:top", "Watch what a service is doing (refreshes every 2 s)."),
        "list": ("lists:list_rollouts", "List rollouts and groups."),
        "tasks": ("lists:tasks", "List tasks: success, failures, trend."),
        "compare": ("compare:compare", "Compare a run with another."),
        "show": ("show:show", "Show a rollout, or how those of a group differ."),
        "cancel": ("cancel:cancel", "Cancel rollouts, by name, group or submitter."),
        "logs": ("lists:logs", "Print what happens at a service."),
        "grafana": ("generated:grafana", "Print a dashboard for Grafana."),
        "alerts": ("generated:alerts", "Print alert rules for Prometheus."),
    },
    "Data": {
        "export": ("export:export", "Export rollouts in other tools' formats."),
        "replay": ("replay:replay", "Look at saved rollouts, or score them again."),
        "images": ("images:images", "Pull, build, list and prune sandbox images."),
        "harnesses": ("harnesses:harnesses", "Install other agents' programs."),
        "harbor": ("harbor:harbor", "Check, run and prepare Harbor's tasks."),
    },
}
"""Commands by what they are for: module and function, and the line in the list of commands."""

VARIABLES = Env("PRORL_")


app = App(
    name="prorl",
    help="ProRL rollout service.",
    help_epilogue="Pages: docs/index.md of the repository; `prorl COMMAND --help` for the options.",
    version=f"prorl {__version__}",
    group_commands=Group("More", sort_key=len(COMMANDS) + 1),
    default_parameter=DEFAULTS,
    config=VARIABLES,
)
for place, (purpose, commands) in enumerate(COMMANDS.items()):
    group = Group(purpose, sort_key=place)
    for name, (path, summary) in commands.items():
        app.command(f"prorl_service.cli.{path}", name=name, help=summary, group=group)
app.register_install_completion_command(add_to_startup=False)


@app.meta.default
def _with_config(
    *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    config: Annotated[
        Path | None, Parameter(help="YAML file with options, named as on the command line.")
    ] = None,
) -> object:
    if config is not None:
        options = dict(options_in(config, "--config", "port: 8080"))
        source = Dict(options, source=str(config), use_commands_as_keys=False)
        app.config = (VARIABLES, source)
    return app(tokens, exit_on_error=False, print_error=False)


def main(arguments: Sequence[str] | None = None) -> None:
    """`arguments`: those of this process by default."""
    with one_line_errors():
        app.meta(arguments, exit_on_error=False, print_error=False)
