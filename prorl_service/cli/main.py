"""The `prorl` command: its subcommands by name, each imported on use, so that help is fast.

Options come from the command line, else from environment variables (`PRORL_SERVE_RUN_WORKERS=8`),
else from the file that `--config` names.
"""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.config import Dict, Env

from prorl_service import __version__

COMMANDS = {
    "serve": ("prorl_service.cli.serve:serve", "Run the rollout service."),
    "front": ("prorl_service.cli.front:front", "Put one address in front of several services."),
    "ray": ("prorl_service.cli.ray:ray", "Run services on all nodes of a Ray cluster."),
    "engine": ("prorl_service.cli.engine:engine", "Run the reference inference engine."),
    "try": (
        "prorl_service.cli.try_agent:try_agent",
        "Try an agent on one task, without a service.",
    ),
    "check": ("prorl_service.cli.check:check", "Check a data set's tasks before training."),
    "status": ("prorl_service.cli.status:status", "Show what a service is doing."),
    "top": ("prorl_service.cli.top:top", "Show what a service is doing, again and again."),
    "list": ("prorl_service.cli.list_rollouts:list_rollouts", "List rollouts and groups."),
    "show": ("prorl_service.cli.show:show", "Show a rollout, or how those of a group differ."),
    "view": ("prorl_service.cli.view:view", "Read rollouts in the terminal, turn by turn."),
    "logs": ("prorl_service.cli.logs:logs", "Print what happens at a service."),
    "export": ("prorl_service.cli.export:export", "Export rollouts in other tools' formats."),
    "replay": ("prorl_service.cli.replay:replay", "Look at saved rollouts, or score them again."),
    "grafana": ("prorl_service.cli.grafana:grafana", "Print a dashboard for Grafana."),
    "alerts": ("prorl_service.cli.alerts:alerts", "Print alert rules for Prometheus."),
    "token": ("prorl_service.cli.token:token", "Print the token of your services."),
    "images": ("prorl_service.cli.images:images", "Pull, build, list and prune sandbox images."),
    "harnesses": ("prorl_service.cli.harnesses:harnesses", "Install other agents' programs."),
    "harbor": ("prorl_service.cli.harbor:harbor", "Check, run and prepare Harbor's tasks."),
    "check-model": ("prorl_service.cli.model:check_model", "Show how a model's chats are read."),
    "install": ("prorl_service.cli.install:install", "Install what sandboxes need."),
    "doctor": ("prorl_service.cli.doctor:doctor", "List the sandboxes that this host supports."),
}
"""Import path of each command, and its line in the list of commands."""

VARIABLES = Env("PRORL_")


def _shown(default: object) -> str | None:
    """Returns a default as the help shows it; None hides a default that says nothing."""
    if default in ((), "", False, None):
        return None
    return f"{default:g}" if isinstance(default, float) else str(default)


DEFAULTS = Parameter(negative=(), show_env_var=False, show_default=_shown, allow_repeating=True)

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
        app.config = (VARIABLES, _options_of(config))
    return app(tokens, exit_on_error=False, print_error=False)


def _options_of(file: Path) -> Dict:
    """Returns the options in the file. Raises `ProRLError`."""
    import yaml

    from prorl_service.errors import ProRLError

    try:
        options = yaml.safe_load(file.read_text()) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ProRLError(f"--config {file}: {error}") from None
    if not isinstance(options, dict):
        raise ProRLError(f"--config {file}: expected options by name, such as `port: 8080`")
    return Dict(options, source=str(file), use_commands_as_keys=False)


def main() -> None:
    try:
        app.meta(exit_on_error=False, print_error=False)
    except Exception as error:
        from prorl_service.cli.errors import report

        if not report(error):
            raise
        sys.exit(2)
