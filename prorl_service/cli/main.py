"""The `prorl` command: its subcommands by name, each imported on use, so that help is fast.

Options come from the command line, else from environment variables (`PRORL_SERVE_RUN_WORKERS=8`),
else from the file that `--config` names.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.config import Dict, Env

from prorl_service import __version__
from prorl_service.cli.program import DEFAULTS, one_line_errors, options_in

COMMANDS = {
    "serve": ("prorl_service.cli.serve:serve", "Run the rollout service."),
    "front": ("prorl_service.cli.serve:front", "Put one address in front of several services."),
    "ray": ("prorl_service.cli.ray:ray", "Run services on all nodes of a Ray cluster."),
    "engine": ("prorl_service.cli.engine:engine", "Run the reference inference engine."),
    "warm-start": (
        "prorl_service.cli.warm_start:warm_start",
        "Have a model imitate rollouts before training.",
    ),
    "try": (
        "prorl_service.cli.try_agent:try_agent",
        "Try an agent on one task, without a service.",
    ),
    "init": ("prorl_service.cli.init:init", "Begin a project of your own."),
    "check": ("prorl_service.cli.check:check", "Check a data set's tasks before training."),
    "status": ("prorl_service.cli.status:status", "Show what a service is doing."),
    "top": ("prorl_service.cli.top:top", "Watch what a service is doing (refreshes every 2 s)."),
    "open": ("prorl_service.cli.generated:open_page", "Open a service's page, signed in."),
    "list": ("prorl_service.cli.lists:list_rollouts", "List rollouts and groups."),
    "compare": ("prorl_service.cli.compare:compare", "Compare a run with another."),
    "show": ("prorl_service.cli.show:show", "Show a rollout, or how those of a group differ."),
    "logs": ("prorl_service.cli.lists:logs", "Print what happens at a service."),
    "export": ("prorl_service.cli.export:export", "Export rollouts in other tools' formats."),
    "replay": ("prorl_service.cli.replay:replay", "Look at saved rollouts, or score them again."),
    "grafana": ("prorl_service.cli.generated:grafana", "Print a dashboard for Grafana."),
    "alerts": ("prorl_service.cli.generated:alerts", "Print alert rules for Prometheus."),
    "token": ("prorl_service.cli.token:token", "Print your token; make tokens for others."),
    "images": ("prorl_service.cli.images:images", "Pull, build, list and prune sandbox images."),
    "harnesses": ("prorl_service.cli.harnesses:harnesses", "Install other agents' programs."),
    "harbor": ("prorl_service.cli.harbor:harbor", "Check, run and prepare Harbor's tasks."),
    "check-model": ("prorl_service.cli.model:check_model", "Show how a model's chats are read."),
    "install": ("prorl_service.cli.install:install", "Install what sandboxes need."),
    "doctor": ("prorl_service.cli.doctor:doctor", "List the sandboxes that this host supports."),
}
"""Import path of each command, and its line in the list of commands."""

VARIABLES = Env("PRORL_")


app = App(
    name="prorl",
    help="ProRL rollout service.",
    version=f"prorl {__version__}",
    default_parameter=DEFAULTS,
    config=VARIABLES,
)
for name, (path, summary) in COMMANDS.items():
    app.command(path, name=name, help=summary)
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
