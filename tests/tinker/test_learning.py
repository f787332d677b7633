"""A tiny agent learns the demo's task by an adapter: `bench.tinker`, which takes half an hour."""

from pathlib import Path

import pytest

from bench import tinker as bench
from prorl_service import local
from recipes.common import tinker_server
from recipes.demo.warm_start import WarmStart, warm_started
from tests.tinker.training import EXACT

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.on_demand,
    pytest.mark.timeout(7200),
]

LEAST = 0.3


def test_success_on_held_out_tasks_rises(tmp_path: Path) -> None:
    policy = warm_started(tmp_path / "cache", WarmStart(seed=0))
    options = ["--sandbox", "bubblewrap"]
    with (
        tinker_server.running(policy, tmp_path) as server,
        local.service([], log=tmp_path / "service.log", options=options) as service,
    ):
        found = bench.learn(policy, server.url, service.url, bench.STEPS).headline
    assert found["success_after"] >= found["success_before"] + LEAST
    assert found["logprob_diff_max"] <= EXACT
    assert found["versions_wrong"] == 0
