"""TRL and VeRL train at the same time on the nodes of one cluster, each a run of its own."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prorl_service import local
from prorl_service.client import RolloutClient
from prorl_service.inference.reference_engine.tiny import build_tiny_model
from prorl_service.ray import runs
from prorl_service.ray.options import NodeOptions
from prorl_service.ray.plan import RunPlan
from prorl_service.schemas import RolloutState, ServiceStatus
from tests.ray.clusters import CHECKOUT, RESOURCE, SERVE, TOKEN, RayCluster, begin, cluster
from tests.verl.data import build_policy, row, write_rows
from tests.verl.training import CompletedRun, run_main_ppo

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.on_demand,
    pytest.mark.timeout(1800),
]

NODES, STEPS = 2, 2
TRL_PYTHON = CHECKOUT / ".venv/bin/python"
"""Interpreter of an environment with TRL, whose transformers VeRL does not work with."""
EVALUATED = 8 * 8
TRL_ROLLOUTS, VERL_ROLLOUTS = EVALUATED + 64 * STEPS + EVALUATED, 4 * 4 * STEPS
TOLERANCE = 1e-3
PLAN = RunPlan(
    run="",
    token=TOKEN,
    nodes=NodeOptions(resource=RESOURCE, share=0.5),
    serve=(*SERVE, "--run-workers", "8"),
    slots=8,
    drain_s=1,
)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[RayCluster]:
    with cluster(tmp_path / "cluster") as running:
        for _ in range(NODES):
            running.add()
        yield running
        assert not running.errors()


def test_two_trainings_share_the_nodes_and_no_tokens(nodes: RayCluster, tmp_path: Path) -> None:
    build_tiny_model(tmp_path / "policy")
    with _engine(tmp_path / "policy", tmp_path / "engine.log") as engine:
        mine = begin(replace(PLAN, run="trl", backends=(engine.url,)), NODES)
        other = begin(replace(PLAN, run="verl"), NODES)
        # Each run has a service on each node, of the same size.
        assert {one.address for one in mine.nodes} == {one.address for one in other.nodes}
        with ThreadPoolExecutor(2) as pool:
            printed = pool.submit(_train_with_trl, tmp_path, mine.front.url)
            trained = pool.submit(_train_with_verl, tmp_path / "verl", other.front.url)
            by_trl, by_verl = printed.result(), trained.result()
        with RolloutClient(mine.front.url, token=TOKEN) as client:
            first = client.status()
        with RolloutClient(other.front.url, token=TOKEN) as client:
            second = client.status()
    _check(first, TRL_ROLLOUTS)
    _check(second, VERL_ROLLOUTS)
    assert [one.url for one in first.backends] == [engine.url]
    assert engine.url not in [one.url for one in second.backends]
    # The trainers' policies have other weights: logprobs of the other's tokens would be far off.
    differences = re.findall(r"sampling_logp_difference/max': '?([\d.e+-]+)", by_trl)
    assert len(differences) == STEPS, by_trl[-3000:]
    assert max(map(float, differences)) < TOLERANCE
    assert max(by_verl.values("training/rollout_probs_diff_max")) < TOLERANCE
    runs.stop("trl")
    runs.stop("verl")


def _engine(model: Path, log: Path) -> AbstractContextManager[local.LocalProcess]:
    command = [str(TRL_PYTHON), "-m", "prorl_service.cli", "engine", "--model", str(model)]
    return local.running(command, log=log)


def multiplied(number: int) -> dict[str, Any]:
    question = {"role": "user", "content": f"What is {number} times 3?"}
    data = {"answer": str(3 * number)}
    return {"task_id": f"t{number}", "agent": "math", "messages": [question], "data": data}


def _train_with_trl(directory: Path, url: str) -> str:
    """Returns what the training of `prorl init` printed, with two steps and other tasks."""
    script = (CHECKOUT / "examples/project/train.py").read_text()
    (directory / "train.py").write_text(re.sub(r"STEPS = \d+", f"STEPS = {STEPS}", script))
    rows = [multiplied(number) for number in range(10, 18)]
    (directory / "tasks.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in rows))
    variables = {"PRORL_URL": url, "PRORL_TOKEN": TOKEN, "ACCELERATE_USE_CPU": "1"}
    paths = os.pathsep.join(str(CHECKOUT / path) for path in ("", "plugins/trl"))
    done = subprocess.run(
        [TRL_PYTHON, "train.py", directory / "policy"],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": paths, **variables},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def _train_with_verl(directory: Path, url: str) -> CompletedRun:
    directory.mkdir()
    build_policy(directory / "model")
    tasks = [row(f"What is {n} times 3?", index=n, ground_truth=str(3 * n)) for n in range(16)]
    write_rows(directory / "train.parquet", tasks)
    write_rows(directory / "val.parquet", tasks[:2])
    settings = {
        "--config-name": "prorl_ppo_trainer",
        "rollout": "prorl",
        "prorl.agent": "math",
        "prorl.max_tokens_per_turn": 10,
        "data.max_prompt_length": 700,
        "data.max_response_length": 200,
        "actor_rollout_ref.rollout.max_model_len": 1024,
        "prorl.url": url,
        "trainer.total_training_steps": STEPS,
    }
    return run_main_ppo(directory, settings, {"PRORL_TOKEN": TOKEN})


def _check(status: ServiceStatus, rollouts: int) -> None:
    assert status.ended.get(RolloutState.DONE, 0) == rollouts
    assert set(status.ended) == {RolloutState.DONE}
    assert [one.takes_rollouts for one in status.services] == [True] * NODES
    assert len({one.slots for one in status.services}) == 1
