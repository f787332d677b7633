import json
import os
import subprocess
import sys
from pathlib import Path

from prorl_service.client import RolloutClient
from prorl_service.local import free_port


def test_one_group_is_split_over_two_processes_and_both_see_its_failure(
    service_url: str, policy: Path, tmp_path: Path
) -> None:
    with RolloutClient(service_url) as client:
        before = client.status().rollouts
        launch = [
            "-m",
            "torch.distributed.run",
            "--nproc-per-node=2",
            f"--master-port={free_port()}",
        ]
        worker = ["-m", "tests.trl.worker", service_url, str(policy), str(tmp_path)]
        environment = os.environ | {
            "ACCELERATE_USE_CPU": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        subprocess.run([sys.executable, *launch, *worker], env=environment, timeout=120, check=True)
        assert client.status().rollouts == before  # what was taken has been acknowledged
    first, second = (json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in (0, 1))
    rows = first["completion_ids"] + second["completion_ids"]
    assert len(rows) == 4
    assert len({tuple(row) for row in rows}) == 4
    assert first["log"][0]["sampling/sampling_logp_difference/max"] < 1e-4
    assert first["log"][0]["prorl/turns"] == 2
    assert first["error"].startswith("RolloutsFailed: 4 of 4 rollouts failed")
    assert second["error"] == f"RuntimeError: on the main process: {first['error']}"
