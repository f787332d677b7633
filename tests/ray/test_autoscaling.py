"""A run whose nodes Ray's own autoscaler adds and removes; Ray emulates the machines."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import ray
import yaml

from prorl_service.client import RolloutClient
from prorl_service.ray import runs
from prorl_service.ray.options import NodeOptions
from prorl_service.ray.plan import State
from prorl_service.ray.supervisor import NAMESPACE
from tests.faults.processes import stub_engine
from tests.front.test_front import assert_done
from tests.ray.clusters import CHECKOUT, RESOURCE, STORE, TOKEN, begin, head_port, plan_of
from tests.ray.loads import Submitted, groups_of, until

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.on_demand,
    pytest.mark.timeout(900),
]

HEAD = "ray.head.default"
MOST = 2
COMMANDS = (
    "initialization_commands",
    "setup_commands",
    "head_setup_commands",
    "worker_setup_commands",
    "head_start_ray_commands",
    "worker_start_ray_commands",
    "cluster_synced_files",
    "rsync_exclude",
    "rsync_filter",
)
"""Keys that Ray's autoscaler expects, without anything to do on emulated machines."""
WAIT_S = 300


def configuration(address: str) -> dict[str, object]:
    rollout = {"CPU": 1, RESOURCE: 1, **STORE}
    return {
        "cluster_name": "emulated",
        "max_workers": MOST,
        "idle_timeout_minutes": 0.1,
        "upscaling_speed": 1.0,
        "provider": {
            "type": "fake_multinode",
            "gcs_address": address,
            "launch_multiple": True,
            "use_node_id_as_ip": True,  # all have one address
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
        },
        **{key: {} for key in ("auth", "docker", "file_mounts")},
        **{key: [] for key in COMMANDS},
        "file_mounts_sync_continuously": False,
        "head_node_type": HEAD,
        "available_node_types": {
            HEAD: {"resources": {"CPU": 1}, "node_config": {}, "max_workers": 0},
            "rollout": {"resources": rollout, "node_config": {}, "max_workers": MOST},
        },
    }


@contextmanager
def autoscaling_head(directory: Path) -> Iterator[str]:
    """Runs Ray's head with its autoscaler, and yields its address."""
    own = ray.util.get_node_ip_address()
    address = f"{own}:{head_port()}"
    config = directory / "autoscaler.yaml"
    config.write_text(yaml.safe_dump(configuration(address)))
    temporary = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    variables = {
        "RAY_FAKE_CLUSTER": "1",
        "RAY_enable_autoscaler_v2": "0",  # whose defaults for emulated machines no wheel has
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "RAY_TMPDIR": temporary,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",  # else it takes the token of ~/.ray, if there is one
        "PYTHONPATH": str(CHECKOUT),
        "XDG_STATE_HOME": str(directory),
    }
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
        *("--port", address.rpartition(":")[2], f"--autoscaling-config={config}"),
        *("--num-cpus=1", "--include-dashboard=false"),
        f"--object-store-memory={STORE['object_store_memory']}",
    ]
    with (directory / "ray.out").open("wb") as output:
        head = subprocess.Popen(
            command,
            env={**os.environ, **variables},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        until(lambda: is_open(own, int(address.rpartition(":")[2])))
        yield address
    finally:
        with suppress(ProcessLookupError):
            os.killpg(head.pid, signal.SIGTERM)
        head.wait()
        shutil.rmtree(temporary, ignore_errors=True)


def is_open(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


def rollout_nodes() -> int:
    return sum(one["Alive"] and RESOURCE in one["Resources"] for one in ray.nodes())


def test_nodes_come_with_the_demand_and_go_without_it(tiny_model: Path, tmp_path: Path) -> None:
    with autoscaling_head(tmp_path) as address, stub_engine(tiny_model) as engine:
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, configure_logging=False)
        nodes = NodeOptions(resource=RESOURCE, max_nodes=MOST)
        plan = replace(plan_of("scaled", engine, workers=4), nodes=nodes)
        plan = replace(plan, serve=(*plan.serve, "--init-workers", "1"), slots=5)
        url = begin(plan, 0).front.url
        assert rollout_nodes() == 0
        with RolloutClient(url, token=TOKEN) as client:
            began_at = time.monotonic()
            submitted = Submitted(client, groups_of("g", 8, 15.0), wait_s=WAIT_S)
            until(lambda: rollout_nodes() == MOST, WAIT_S)
            grown_s = time.monotonic() - began_at
            assert_done(submitted.ended(), submitted.groups)
            ended_at = time.monotonic()
            until(lambda: not runs.status("scaled").nodes, WAIT_S)
            drained_s = time.monotonic() - ended_at
            until(lambda: rollout_nodes() == 0, WAIT_S)
            removed_s = time.monotonic() - ended_at
        status = runs.status("scaled")
        assert (status.wanted, status.front.state) == (0, State.SERVING)
        text = "nodes came after {:.0f} s; drained {:.0f} s, gone {:.0f} s after the last end\n"
        sys.stdout.write(text.format(grown_s, drained_s, removed_s))
        runs.stop("scaled")
        ray.shutdown()
