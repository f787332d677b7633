"""The recipes' Slurm scripts on a real Slurm, whose nodes are all this machine.

Rollout services on two nodes, a trainer on a third, rollouts in real sandboxes on a scripted
engine, and jobs that take a node away.
"""

import json
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from prorl_service.client import RolloutClient
from prorl_service.front.discovery import Announcements
from prorl_service.schemas import RolloutState
from prorl_service.testing import StubEngine
from tests.faults.processes import stub_engine
from tests.rollouts.journals import rollout_states
from tests.slurm.cluster import CHECKOUT, Cluster, cluster

pytestmark = [pytest.mark.processes, pytest.mark.slurm]

GROUPS, SIZE, SLEEP_S = 6, 3, 1.5
SERVICES = (
    *("recipes/slurm/services.sbatch", "--sandbox", "bubblewrap"),
    *("--warm-sandboxes", "0", "--run-workers", "3"),
)
SHELL = ("--agent", "tests.faults.agents:Shell")
CONTINUING = ("--agent", "tests.faults.agents:Continuing")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("slurm"), ["n1", "n2", "n3"]) as running:
        yield running


@pytest.fixture
def engine(tiny_model: Path) -> Iterator[StubEngine]:
    with stub_engine(tiny_model) as running:
        yield running


class Run:
    """One run, with the directory that its jobs share."""

    def __init__(self, slurm: Cluster, directory: Path) -> None:
        self.slurm = slurm
        self.directory = directory
        self._variables = {"PRORL_RUN": str(directory), "PYTHONPATH": str(CHECKOUT)}

    def sbatch(self, *arguments: str) -> str:
        log = f"--output={self.directory.parent}/%x-%A_%a.log"
        return self.slurm.sbatch(log, *arguments, **self._variables)

    def trainer(self, engine: StubEngine, results: Path, agent: Sequence[str]) -> str:
        sizes = map(str, (GROUPS, SIZE, SLEEP_S, results))
        return self.sbatch(
            *("recipes/slurm/trainer.sbatch", "--wait-for", "2", "--backend", engine.url),
            *(*agent, "--", "python", "-m", "tests.slurm.trainer", *sizes),
        )

    def log(self, name: str, job: str) -> str:
        return "".join(
            path.read_text() for path in self.directory.parent.glob(f"prorl-{name}-{job}_*.log")
        )

    def running(self) -> dict[str, int]:
        """Returns the number of running rollouts by service."""
        token = (self.directory / "token").read_text()
        found = {}
        for name, url in Announcements(self.directory / "services").look().items():
            with RolloutClient(url, token=token) as client:
                found[name] = client.status().rollouts.get(RolloutState.RUNNING, 0)
        return found

    def ends(self, journal: str) -> dict[str, str | None]:
        """Returns the state of each rollout in `journal`; None if it has not ended."""
        return dict(rollout_states(self.directory / "journals" / f"{journal}.sqlite"))

    def processes(self) -> set[psutil.Process]:
        """Returns the processes of the run's jobs, including sandboxes."""
        own = {one for one in psutil.process_iter() if self._is_own(one)}
        return own | {child for one in own for child in one.children(recursive=True)}

    def _is_own(self, process: psutil.Process) -> bool:
        try:
            return bool(process.environ().get("PRORL_RUN") == str(self.directory))
        except psutil.Error:
            return False


@pytest.fixture
def run(slurm: Cluster, tmp_path: Path) -> Run:
    return Run(slurm, tmp_path / "run")


def until(holds: Callable[[], object]) -> None:
    """Waits without a deadline: the test's own timeout is the budget."""
    while not holds():
        time.sleep(0.1)


def test_a_preempted_service_drains_and_returns_and_nothing_is_lost(
    run: Run, engine: StubEngine, tmp_path: Path
) -> None:
    results = tmp_path / "results.json"
    services = run.sbatch("--partition=graceful", "--array=0-1", *SERVICES, *SHELL)
    trainer = run.trainer(engine, results, SHELL)
    until((run.directory / "token").exists)
    until(lambda: [one for one in run.running().values() if one] == [SIZE, SIZE])
    processes = run.processes()
    assert (run.directory / "token").stat().st_mode & 0o777 == 0o600

    run.slurm.preempt(f"{services}_0")
    left = Counter(run.ends("0-0").values())
    assert left["done"] >= SIZE, "rollouts that ran when the signal came must have ended"
    run.slurm.begin_again(f"{services}_0")
    until(lambda: "0-0" in Announcements(run.directory / "services").look())
    processes |= run.processes()

    until(results.exists)
    ended = json.loads(results.read_text())
    assert [state for _, state, _ in ended] == ["done"] * GROUPS * SIZE
    assert {rollout_id: state for rollout_id, state, _ in ended} == run.ends("front")

    until(lambda: not run.slurm.states())
    assert run.slurm.state(trainer) == "COMPLETED"
    _, alive = psutil.wait_procs(processes, timeout=20)
    assert not [one for one in alive if one.status() != psutil.STATUS_ZOMBIE]
    assert "2 of 2 services answer (0-0, 1-0)" in run.log("trainer", trainer)


def test_rollouts_of_a_preempted_service_continue_at_another(
    run: Run, engine: StubEngine, tmp_path: Path
) -> None:
    results = tmp_path / "results.json"
    services = run.sbatch("--partition=graceful", "--array=0-1", *SERVICES, *CONTINUING)
    run.trainer(engine, results, CONTINUING)
    until((run.directory / "token").exists)
    until(lambda: [one for one in run.running().values() if one] == [SIZE, SIZE])
    until(lambda: engine.calls >= 2 * SIZE + 1)

    run.slurm.preempt(f"{services}_0")
    assert "done" not in run.ends("0-0").values()
    until(results.exists)
    ended = json.loads(results.read_text())
    assert [state for _, state, _ in ended] == ["done"] * GROUPS * SIZE
    assert [len(resumed) for _, _, resumed in ended if resumed] == [1] * SIZE
    assert engine.calls == GROUPS * SIZE * 2
    until(lambda: not run.slurm.states())


def test_a_preempted_trainer_gets_a_signal_and_is_restarted(run: Run, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    told = tmp_path / "told"
    script = f"""
        [ ! -e {begun} ] || exit 0
        trap 'touch {told}; exit 1' TERM
        touch {begun}
        while :; do sleep 0.1; done
    """
    trainer = run.sbatch(
        "recipes/slurm/trainer.sbatch", "--wait-for", "0", "--", "bash", "-c", script
    )
    until(begun.exists)
    run.slurm.preempt(trainer)
    run.slurm.begin_again(trainer)
    until(lambda: run.slurm.state(trainer) == "COMPLETED")
    assert told.exists()


def test_a_trainer_without_its_services_says_so_at_the_deadline(run: Run) -> None:
    options = ("--wait-for", "2", "--wait-s", "1", "--", "echo", "begun")
    trainer = run.sbatch("recipes/slurm/trainer.sbatch", *options)
    until(lambda: run.slurm.state(trainer) == "FAILED")
    log = run.log("trainer", trainer)
    assert "prorl: 0 of 2 services answer (none yet)" in log
    assert "check that their jobs run" in log
    assert "begun\n" not in log


def test_a_cluster_that_would_signal_sandboxes_is_refused(tmp_path: Path) -> None:
    with cluster(tmp_path / "slurm", ["n1"], proctrack="linuxproc") as slurm:
        run = Run(slurm, tmp_path / "run")
        services = run.sbatch("--array=0", *SERVICES)
        until(lambda: run.slurm.state(services) == "FAILED")
        assert "the cluster needs proctrack/cgroup" in run.log("services", services)


@pytest.mark.parametrize(
    ("script", "variables", "message"),
    [
        ("services.sbatch", {}, "PRORL_RUN: is not set"),
        ("services.sbatch", {"PRORL_RUN": "run"}, "is not an absolute path"),
        ("trainer.sbatch", {"PRORL_RUN": "{tmp_path}"}, "no command"),
        ("ray.sbatch", {"PRORL_RUN": "{tmp_path}"}, "no command"),
    ],
)
def test_wrong_settings_are_reported_immediately(
    slurm: Cluster, tmp_path: Path, script: str, variables: dict[str, str], message: str
) -> None:
    given = {name: value.format(tmp_path=tmp_path) for name, value in variables.items()}
    job = {"SLURM_SUBMIT_DIR": str(CHECKOUT), "SLURM_JOB_ID": "1"}
    done = subprocess.run(
        [CHECKOUT / "recipes/slurm" / script],
        env={**slurm.environment, **job, **given},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert message in done.stderr
