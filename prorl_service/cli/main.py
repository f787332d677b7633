"""The `prorl` command. Each of its commands is imported when it is used, so that help is fast."""

from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from prorl_service import __version__

COMMANDS = {
    "serve": ("prorl_service.cli.serve:serve", "Run the rollout service."),
    "front": ("prorl_service.cli.front:front", "Have several services do the rollouts."),
    "engine": ("prorl_service.cli.engine:engine", "Run the reference inference engine."),
    "status": ("prorl_service.cli.status:status", "Show what a service does now."),
    "token": ("prorl_service.cli.token:token", "Print the token of your services here."),
    "images": ("prorl_service.cli.images:images", "Images of sandboxes: pull, build, list, prune."),
    "check-model": ("prorl_service.cli.model:check_model", "Say how a model's chats are read."),
    "doctor": ("prorl_service.cli.doctor:doctor", "Say what this host can do for sandboxes."),
}
"""Import path of each command, and its line in the list of commands."""


class _Lazy(TyperGroup):
    """Its commands are names until one is used."""

    def __init__(self, **given: Any) -> None:
        given["commands"] = {
            name: TyperCommand(name, help=text) for name, (_, text) in COMMANDS.items()
        }
        super().__init__(**given)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, None if command is None else _loaded(str(command.name)), rest


def _loaded(name: str) -> Any:
    module, _, attribute = COMMANDS[name][0].partition(":")
    found = getattr(import_module(module), attribute)
    if not isinstance(found, typer.Typer):
        function, found = found, typer.Typer(add_completion=False)
        found.command()(function)
    command = typer.main.get_command(found)
    command.name = name
    return command


app = typer.Typer(cls=_Lazy, no_args_is_help=True, help="ProRL rollout service.")


def _version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"prorl {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass
