"""The `prorl` command: `main` names its commands, each in a module of its own."""

from prorl_service.cli.main import app

__all__ = ["app"]
