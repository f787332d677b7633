"""The demo over three seeds: how much an agent learns through the service, and how fast.

The headline is the run of the first seed, which is what `make demo` does; rows hold all runs.
"""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import result

SEEDS = (0, 1, 2)


def run(seed: int, output: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "recipes.demo", "--seed", str(seed), "--output", str(output)]
    subprocess.run(command, check=True)
    headline: dict[str, float] = json.loads((output / "summary.json").read_text())["headline"]
    return headline


def main() -> None:
    with TemporaryDirectory() as directory:
        headlines = {seed: run(seed, Path(directory) / str(seed)) for seed in SEEDS}
    rows = [{"seed": seed, **headline} for seed, headline in headlines.items()]
    result.write("demo", rows, headlines[SEEDS[0]])


if __name__ == "__main__":
    main()
