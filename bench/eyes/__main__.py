"""`python -m bench.eyes`: what lists over a full shelf cost a service. Minutes."""

import tempfile
from pathlib import Path

from bench.eyes import lists
from prorl_service.cli.program import run


def main(*, rollouts: int = 100_000, shelf_mb: float = 512) -> None:
    """Measure lists.

    Parameters
    ----------
    rollouts
        Rollouts on the shelf.
    shelf_mb
        Its limit, in MiB.
    """
    with tempfile.TemporaryDirectory() as directory:
        for row in lists.measure(Path(directory), rollouts, shelf_mb):
            print("  ".join(f"{name}: {value}" for name, value in row.items()))


if __name__ == "__main__":
    run(main)
