"""Releases of the project as programs: this checkout, and earlier ones out of its history.

An earlier release runs with the packages of this environment. Its service gets rollouts and weights
from its own client; then another release, or another place, continues.
"""

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from prorl_service import local
from prorl_service.client import RolloutClient
from prorl_service.schemas import Rollout, RolloutState
from tests.faults.processes import WAIT_S, group

ROOT = Path(__file__).parents[2]
EARLIER = ("bcafd6be", "a230819c")
"""First and last commit of release 0.2.0, which has no tag: journals of versions 4 and 5."""
FILL = """
import sys
from pathlib import Path
from prorl_service import schemas
from prorl_service.client import RolloutClient

url, weights, *groups = sys.argv[1:]
quick, slow = [schemas.Group.model_validate_json(one) for one in groups]
content = [Path(weights).read_bytes()]
if hasattr(schemas, "PolicyClaim"):
    who = schemas.TrainingIdentity(training_id="t", process_id="1", host="h", pid=1, user="u")
    with RolloutClient(url, training=who.key) as trainer:
        trainer.claim_policy(schemas.PolicyClaim(training=who))
        trainer.stream_weights(content)
else:
    with RolloutClient(url) as trainer:
        trainer.stream_weights(content, 1)
with RolloutClient(url) as client:
    client.submit([quick])
    for one in client.wait(quick.rollout_ids(), 60):
        print(one.model_dump_json())
    client.submit([slow])
    while client.get(slow.rollout_ids()[0]).state not in ("running", "done"):
        pass
"""
"""Script that pushes weights, waits for one group, and leaves another one running."""


@dataclass(frozen=True, slots=True)
class Release:
    directory: Path = ROOT

    @classmethod
    def of(cls, commit: str, directory: Path) -> "Release":
        """Writes the packages of a commit to a new directory. Raises `CalledProcessError` if the
        clone's history lacks it."""
        git = ["git", "-C", str(ROOT), "archive", commit, "prorl_service", "tests/faults"]
        packed = subprocess.run(git, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(directory, filter="data")
        return cls(directory)

    def engine(self, model: Path) -> AbstractContextManager[local.LocalProcess]:
        """Runs the fault suite's engine as the release's service knows engines."""
        port = local.free_port()
        module = ["-m", "tests.faults.engine", str(port), str(model), "0.02"]
        return self._running(module, model / "engine.log", port)

    def service(
        self, engine: str | None, journal: Path
    ) -> AbstractContextManager[local.LocalProcess]:
        """Runs a service of the release with the fault suite's agent; without an engine, one that
        is announced in the directory `services`."""
        module = ["-m", "prorl_service.cli", "serve", "--resume", "--journal", str(journal)]
        module += ["--agent", "tests.faults.agents:Shell", "--sandbox", "bubblewrap"]
        announced = ["--announce", str(journal.with_name("services") / "a.json")]
        module += ["--run-workers", "2", *(announced if engine is None else ["--backend", engine])]
        return self._running(module, journal.with_name("service.log"))

    def front(self, engine: str, directory: Path) -> AbstractContextManager[local.LocalProcess]:
        """Runs a front for the services that are announced in a directory."""
        module = ["-m", "prorl_service.cli", "front", "--backend", engine]
        module += ["--services", str(directory / "services"), "--wait-for", "0"]
        module += ["--journal", str(directory / "front.sqlite")]
        module += ["--agent", "tests.faults.agents:Shell"]
        return self._running(module, directory / "front.log")

    def _running(
        self, module: Sequence[str], log: Path, port: int | None = None
    ) -> AbstractContextManager[local.LocalProcess]:
        command = [sys.executable, *module]
        return local.running(command, log=log, port=port, environment=self._environment)

    def python(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Runs Python where `prorl_service` is that of the release."""
        return subprocess.run(
            [sys.executable, *arguments],
            env=os.environ | self._environment,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )

    @property
    def _environment(self) -> dict[str, str]:
        # Without the second, `python -m` would take the modules of the working directory.
        return {"PYTHONPATH": str(self.directory), "PYTHONSAFEPATH": "1"}


@dataclass(frozen=True, slots=True)
class Filled:
    """What a service has acknowledged."""

    ended: list[Rollout]
    unfinished: list[str]

    def lost_at(self, model: Path, journal: Path) -> list[str]:
        """Starts a service of this checkout on the journal. Returns the ids of rollouts that are
        not as they were, or do not end well, and "weights" if those pushed are not the newest."""
        now = Release()
        with (
            now.engine(model) as engine,
            now.service(engine.url, journal) as service,
            RolloutClient(service.url) as client,
        ):
            return self._lost(client)

    def _lost(self, client: RolloutClient) -> list[str]:
        ids = [one.rollout_id for one in self.ended]
        now = client.wait([*ids, *self.unfinished], WAIT_S)
        before = {one.rollout_id: _result(one) for one in self.ended}
        lost = [
            one.rollout_id
            for one in now
            if before.get(one.rollout_id, _result(one)) != _result(one)
            or one.state is not RolloutState.DONE
        ]
        return lost + ["weights"] * (client.status().policy_version != 1)


def _result(rollout: Rollout) -> tuple[object, ...]:
    return rollout.state, rollout.reward, rollout.trajectory


def fill(release: Release, url: str, model: Path) -> Filled:
    """Has the release's client push weights and submit rollouts, some of which end."""
    groups = group("quick", n=4), group("slow", n=4, turns=1, sleep=2)
    texts = [one.model_dump_json(exclude_defaults=True) for one in groups]
    done = release.python("-c", FILL, url, str(model / "model.safetensors"), *texts)
    assert done.returncode == 0, done.stderr
    ended = [Rollout.from_answer(line) for line in done.stdout.splitlines()]
    return Filled(ended, groups[1].rollout_ids())


def lost_in_upgrade(earlier: Release, directory: Path, model: Path) -> list[str]:
    """Kills a service of the earlier release at work, and starts this one on its files."""
    directory.mkdir()
    journal = directory / "journal.sqlite"
    with earlier.engine(model) as engine, earlier.service(engine.url, journal) as old:
        filled = fill(earlier, old.url, model)
        old.kill()
    return filled.lost_at(model, journal)


KILLS = ("before", "during", "after")
"""Moments of a backup at which its service is killed."""


def lost_in_restore(kill: str, directory: Path, model: Path) -> list[str]:
    """Backs a service up, kills it, and starts another one on the copy, elsewhere."""
    directory.mkdir()
    now, journal, copy = Release(), directory / "journal.sqlite", directory / "copy"
    with now.engine(model) as engine, now.service(engine.url, journal) as service:
        filled = fill(now, service.url, model)
        if kill == "before":
            service.kill()
        backup = subprocess.Popen(
            [sys.executable, "-m", "prorl_service.cli", "backup", str(journal), str(copy)],
            stdout=subprocess.DEVNULL,
        )
        while kill == "during" and backup.poll() is None and not [*directory.glob("copy*")]:
            pass
        if kill == "during":
            service.kill()
        assert backup.wait(WAIT_S) == 0
        service.kill()
    for path in [*directory.glob(f"{journal.name}*")]:
        path.rename(directory / f"lost.{path.name}")
    elsewhere = copy.rename(directory / "elsewhere")
    return filled.lost_at(model, elsewhere / journal.name)
