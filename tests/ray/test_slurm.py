"""The Slurm script that starts Ray in its job, on a real Slurm whose nodes are all this machine."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.processes import stub_engine
from tests.ray.clusters import head_port
from tests.rollouts.journals import rollout_states
from tests.slurm.cluster import CHECKOUT, Cluster, cluster
from tests.slurm.test_slurm import Run, until

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.slurm,
    pytest.mark.on_demand,
    pytest.mark.timeout(900),
]

GROUPS, SIZE, SLEEP_S = 4, 2, 0.5
AGENT = "tests.faults.agents:Shell"


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster whose nodes have addresses of their own, as Ray needs them."""
    addresses = [f"127.0.0.{number}" for number in (11, 12, 13)]
    with cluster(tmp_path / "slurm", ["n1", "n2", "n3"], addresses=addresses) as running:
        yield running


def test_a_job_on_ray_trains_and_ends(slurm: Cluster, tiny_model: Path, tmp_path: Path) -> None:
    run, results, options = Run(slurm, tmp_path / "run"), tmp_path / "out.json", tmp_path / "o.yaml"
    options.write_text("sandbox: bubblewrap\nwarm-sandboxes: 0\nrun-workers: 2\n")
    command = ("python", "-m", "tests.slurm.trainer", *map(str, (GROUPS, SIZE, SLEEP_S, results)))
    variables = {
        "PRORL_RUN": str(run.directory),
        "PRORL_VENV": str(Path(sys.prefix)),
        "PRORL_RAY_PORT": str(head_port()),
        "PYTHONPATH": str(CHECKOUT),
    }
    with stub_engine(tiny_model) as engine:
        job = slurm.sbatch(
            *(f"--output={tmp_path}/%x-%A.log", "--nodes=3", "recipes/slurm/ray.sbatch"),
            *("--agent", AGENT, "--backend", engine.url, "--serve-config", str(options)),
            *("--drain-s", "1", "--", *command),
            **variables,
        )
        until(lambda: job not in slurm.states())
    log = (tmp_path / f"prorl-ray-{job}.log").read_text()
    assert slurm.state(job) == "COMPLETED", log
    ended = json.loads(results.read_text())
    assert [state for _, state, _ in ended] == ["done"] * GROUPS * SIZE
    journals = run.directory / "ray" / "run" / "journals"
    states = {rollout_id: state for rollout_id, state, _ in ended}
    assert states == dict(rollout_states(journals / "front.sqlite"))
    assert "2 of 2 services answer" in log
