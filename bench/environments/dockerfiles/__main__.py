"""Which shapes of Dockerfiles this host builds, by which builder: a table.

`python -m bench.environments.dockerfiles --base REFERENCE [SHAPE...]`; the base is an image of the
cache with bash, coreutils, grep and sed, such as `local:deb`.
"""

import argparse
import asyncio
import tempfile
from pathlib import Path

from bench.environments.dockerfiles.corpus import Outcome, dockerfiles_ok, shapes, try_shape
from prorl_service.sandbox.images import ImageCache
from prorl_service.sandbox.images.dockerfiles.ladder import Ladder


async def measure(base: str, names: list[str], directory: Path) -> list[Outcome]:
    """Tries each shape by each builder that works on this host."""
    outcomes = []
    for rung in Ladder().rungs:
        ladder = Ladder((rung,))
        trial = Path(tempfile.mkdtemp(dir=directory))
        why = (await ladder.failures(trial))[rung.name]
        if why is not None:
            print(f"{rung.name}: not run here: {why}", flush=True)
            continue
        for shape in shapes():
            if not names or shape.name in names:
                root = directory / f"cache-{shape.network}-{trial.name}"
                work = directory / f"{shape.name}-{trial.name}"
                outcome = await try_shape(shape, ladder, base=base, root=root, work=work)
                show(outcome)
                outcomes.append(outcome)
    return outcomes


def show(outcome: Outcome) -> None:
    mark = "ok" if outcome.ok else "NO"
    first = outcome.outcome.splitlines()[0]
    row = f"{mark} {outcome.shape:24} {outcome.builder:10} {outcome.seconds:6.1f} s {first}"
    print(row, flush=True)


async def path_of(reference: str) -> str:
    async with ImageCache().image(reference) as path:
        return str(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", required=True)
    parser.add_argument("shape", nargs="*")
    options = parser.parse_args()
    base = asyncio.run(path_of(options.base))
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o711)  # containers may be another user's
        outcomes = asyncio.run(measure(base, options.shape, Path(directory)))
    tried = len({one.shape for one in outcomes})
    print(f"{dockerfiles_ok(outcomes)} of {tried} shapes are as they must be")


if __name__ == "__main__":
    main()
