"""Starts the `prorl` command, or says what to install where only the client is."""

import sys


def main() -> None:
    try:
        from prorl_service.cli.main import main as run
    except ModuleNotFoundError as error:
        sys.exit(
            f"prorl: this environment has the client alone: {error.name} is not installed\n"
            "  to do: pip install 'prorl-service[all]'"
        )
    run()
