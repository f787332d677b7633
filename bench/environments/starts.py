"""Start of a Harbor task's sandbox, by Harbor's own interface: our environment and Harbor's for
Apptainer, in one run, in turns.

*Cold*: the image is there, no container of it runs. *Warm*: one does; Harbor's has no such state,
so that all its starts are cold. A start is `start` up to the end of `exec("true")`. Needs Harbor:
`measured` runs this module in .venv-harbor.

Harbor's environment installs a web server into each container at its start, from PyPI. Here the
image has that server, which is its best case. As root without subordinate ids Apptainer refuses
what that environment asks of it: there it is started as `nobody`, as our containers are.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median

from prorl_service.sandbox.images import ImageCache
from tests.sandbox.images.debian import debian_directory

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-harbor" / "bin" / "python"
SERVER_PACKAGES = ("uvicorn", "fastapi")
IMAGE = "bench-harbor-app"

AS_NOBODY = """\
#!/bin/sh
[ "$1" = exec ] || exec apptainer "$@"
shift
exec setpriv --reuid 65534 --regid 65534 --clear-groups \\
    env HOME=/ apptainer exec --ignore-subuid --ignore-fakeroot-command "$@"
"""

ROUNDS = 7
WARM_STARTS = 10

Row = dict[str, object]


def measured(rounds: int) -> list[Row]:
    """Returns p50 in ms of each environment, cold and warm. Raises `FileNotFoundError` without
    .venv-harbor (`scripts/setup-harbor`)."""
    variables = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'plugins' / 'harbor'}"}
    command = [str(PYTHON), "-m", "bench.environments.starts", str(rounds)]
    done = subprocess.run(
        command, env=variables, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    rows: list[Row] = json.loads(done.stdout.splitlines()[-1])
    return rows


async def _image() -> str:
    """Returns an image of tests' Debian with the server that Harbor's environment starts in it."""
    cache = ImageCache()
    local = f"local:{IMAGE}"
    if not any(local in entry.names for entry in await cache.entries()):
        with tempfile.TemporaryDirectory() as directory:
            root = Path(directory, "root")
            await asyncio.to_thread(_make_root, root)
            await cache.build(IMAGE, str(root))
    async with cache.image(local) as path:
        return str(path)


def _make_root(root: Path) -> None:
    shutil.copytree(debian_directory(), root, symlinks=True)
    # Harbor's environment starts commands there, unless it finds a Dockerfile.
    (root / "app").mkdir()
    system = "/usr/bin/python3"
    venv = root / "opt" / "harbor-server"
    subprocess.run([system, "-m", "venv", "--without-pip", "--symlinks", venv], check=True)
    [packages] = venv.glob("lib/python3*/site-packages")
    version = packages.parent.name.removeprefix("python")
    install = [sys.executable, "-m", "pip", "install", "-qq", "--target", str(packages)]
    install += ["--python-version", version, "--only-binary=:all:", *SERVER_PACKAGES]
    subprocess.run(install, check=True, stdout=sys.stderr)


def _as_nobody(directory: Path) -> None:
    program = directory / "singularity"
    program.write_text(AS_NOBODY)
    program.chmod(0o755)
    os.environ["PATH"] = f"{directory}:{os.environ['PATH']}"


def _environments(image: str, work: Path) -> dict[str, Callable[[], object]]:
    """Returns how to make each environment, in an empty working directory."""
    from harbor.environments.singularity import SingularityEnvironment
    from harbor.models.task.config import EnvironmentConfig, NetworkPolicy
    from harbor.models.trial.paths import TrialPaths

    from prorl_harbor import Environment

    if os.geteuid() == 0:
        _as_nobody(work)
    directory = work / "environment"
    directory.mkdir()

    def new(kind: Callable[..., object], mode: str) -> object:
        return kind(
            environment_dir=directory,
            environment_name="task",
            session_id="task__env",
            trial_paths=TrialPaths(trial_dir=directory / "trial"),
            task_env_config=EnvironmentConfig(docker_image=image),
            network_policy=NetworkPolicy(network_mode=mode),
        )

    return {
        "ours": lambda: new(Environment, "no-network"),
        "Harbor's singularity": lambda: new(SingularityEnvironment, "public"),
    }


async def _start_ms(make: Callable[[], object]) -> float:
    """Starts one and ends it; returns the time until its first command has run."""
    environment = make()
    start: Callable[..., Awaitable[object]] = environment.start  # type: ignore[attr-defined]
    began_at = time.perf_counter()
    try:
        await start(force_build=False)
        done = await environment.exec("true")  # type: ignore[attr-defined]
        took_ms = (time.perf_counter() - began_at) * 1e3
        assert done.return_code == 0, done
    finally:
        await environment.stop(delete=True)  # type: ignore[attr-defined]
    return took_ms


async def _measure(rounds: int) -> list[Row]:
    from prorl_harbor import close, runtime

    image = await _image()
    times: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as directory:
        makers = _environments(image, Path(directory))
        for _ in range(rounds):
            for who, make in makers.items():
                await runtime.sandboxes()  # what a process does once is not part of a start
                times.setdefault((who, "cold"), []).append(await _start_ms(make))
                if who == "ours":
                    for _ in range(WARM_STARTS):
                        times.setdefault((who, "warm"), []).append(await _start_ms(make))
                    await close()
    await close()
    return [
        {"environment": who, "state": state, "starts": len(ms), "p50_ms": round(median(ms), 1)}
        for (who, state), ms in times.items()
    ]


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_measure(int(sys.argv[1])))))
