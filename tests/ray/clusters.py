"""A Ray cluster of this machine's own, whose nodes have addresses and directories of their own.

Nodes are on loopback from 127.0.0.2 on. They share this machine's processors, and no directory.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray.cluster_utils import Cluster

from prorl_service.local import free_port
from prorl_service.pipeline.config import PipelineConfig
from prorl_service.ray import runs
from prorl_service.ray.options import NodeOptions
from prorl_service.ray.plan import SERVICES, NodeStatus, RunPlan, RunStatus, State
from prorl_service.ray.supervisor import NAMESPACE
from prorl_service.testing import StubEngine
from prorl_service.utils import logs
from tests.server.scored_agent import SCORED

CHECKOUT = Path(__file__).parents[2]
RESOURCE = "rollout_node"
LAST_WORKER_PORT = 19_999
TOKEN = "a-token-of-the-tests"
HEAD = "127.0.0.2"
ATTEMPTS = 3
SERVE = ("--sandbox", "process", "--warm-sandboxes", "0")
STORE = {"object_store_memory": 80 * 2**20}


class RayCluster:
    def __init__(self, directory: Path, patch: pytest.MonkeyPatch) -> None:
        self._directory = directory
        self._patch = patch
        self._hosts = count(3)
        patch.setenv("PYTHONPATH", str(CHECKOUT))
        patch.setenv("XDG_STATE_HOME", str(directory / HEAD))
        head = {"num_cpus": 1, "node_ip_address": HEAD, "include_dashboard": False, **STORE}
        self._cluster = Cluster()
        self._added(**head)
        ray.init(
            address=self.address,
            namespace=NAMESPACE,
            log_to_driver=False,
            configure_logging=False,
            _node_ip_address=HEAD,
        )

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add(self) -> Any:
        """Adds a node for rollouts. Only in the main thread: Ray sets signal handlers."""
        host = f"127.0.0.{next(self._hosts)}"
        self._patch.setenv("XDG_STATE_HOME", str(self._directory / host))
        return self._added(num_cpus=1, resources={RESOURCE: 1.0}, node_ip_address=host, **STORE)

    def _added(self, **options: Any) -> Any:
        """Adds a node, again if it did not start within Ray's 30 s: the machine may be busy."""
        for _ in range(ATTEMPTS - 1):
            try:
                return self._cluster.add_node(wait=False, **options)
            except Exception as error:
                if "timed out during startup" not in str(error):
                    raise
        return self._cluster.add_node(wait=False, **options)

    def kill(self, node: Any) -> None:
        """Kills all processes of a node, as if its machine had lost power."""
        self._cluster.remove_node(node, allow_graceful=False)

    def kill_at(self, host: str) -> None:
        """Kills the node at that address."""
        self.kill(self._at(host))

    def kill_raylet_at(self, host: str) -> None:
        """Kills the raylet of the node at that address, and no other process."""
        self._at(host).kill_raylet(check_alive=False)

    def _at(self, host: str) -> Any:
        nodes = self._cluster.list_all_nodes()
        return next(one for one in nodes if one.node_ip_address == host)

    def close(self) -> None:
        ray.shutdown()
        self._cluster.shutdown()

    def announced(self, run: str) -> set[str]:
        """Returns the names of the services that are announced to the front."""
        return {file.stem for file in (self.directory(HEAD, run) / SERVICES).glob("*.json")}

    def directory(self, host: str, run: str) -> Path:
        return self._directory / host / "prorl" / "ray" / run

    def journal(self, run: str) -> Path:
        """Returns the journal of the front."""
        return self.directory(HEAD, run) / "journals" / "front.sqlite"

    def errors(self) -> list[str]:
        """Returns the errors that services and fronts have logged."""
        files = self._directory.glob("*/prorl/ray/*/logs/*.log")
        return [one for file in files for one in logs.errors(file.read_text(errors="replace"))]


@contextmanager
def cluster(directory: Path) -> Iterator[RayCluster]:
    with pytest.MonkeyPatch.context() as patch:
        # Short, as paths of sockets must be; other tests look for clusters in the default one.
        temporary = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
        patch.setenv("RAY_TMPDIR", temporary)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_NUM_REDIS_GET_RETRIES", "120")  # seconds in which a head may start
        patch.delenv("RAY_ADDRESS", raising=False)
        try:
            running = RayCluster(directory, patch)
            try:
                yield running
            finally:
                running.close()
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def plan_of(run: str, engine: StubEngine, *, workers: int = 8) -> RunPlan:
    """Returns a run whose services take half of each node. `workers`: of RUN, in each service."""
    return RunPlan(
        run=run,
        token=TOKEN,
        nodes=NodeOptions(resource=RESOURCE, share=0.5),
        agents=(SCORED,),
        backends=(engine.url,),
        serve=(*SERVE, "--run-workers", str(workers)),
        slots=workers + PipelineConfig().init_workers,
        drain_s=1,
    )


def serving(run: str, count: int, timeout_s: float = 120) -> RunStatus:
    """Returns the status of the run once so many services answer."""
    return runs.wait_until_up(run, services=count, timeout_s=timeout_s, report=lambda _: None)


def service_on(status: RunStatus, host: str) -> NodeStatus:
    return next(one for one in status.nodes if one.address == host)


def begin(plan: RunPlan, count: int) -> RunStatus:
    """Starts a run, and returns its status once so many services answer."""
    runs.start(plan)
    return serving(plan.run, count)


def is_gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def is_serving_again(run: str, host: str, old_pid: int) -> bool:
    """Returns whether another process is the service of that host."""
    report = service_on(runs.status(run), host).report
    return report.state is State.SERVING and report.pid != old_pid


def head_port() -> int:
    """Returns a free port above those that Ray gives its workers."""
    while (port := free_port()) <= LAST_WORKER_PORT:
        pass
    return port


def environment() -> dict[str, str]:
    return {**os.environ, "PRORL_TOKEN": TOKEN}
