"""Services of an earlier release are replaced by this one's, and the two releases talk."""

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from prorl_service.client import RolloutClient
from tests.faults.processes import WAIT_S, group
from tests.faults.releases import EARLIER, Release, lost_in_upgrade

pytestmark = pytest.mark.processes

CALLS = """
import sys
from prorl_service.client import RolloutClient
from prorl_service.schemas import Group, PolicyClaim, TrainingIdentity, WeightsQuery
from pathlib import Path

url, weights, group = sys.argv[1:]
group = Group.model_validate_json(group)
who = TrainingIdentity(training_id="t", process_id="1", host="h", pid=1, user="u")
with RolloutClient(url, training=who.key) as client:
    client.claim_policy(PolicyClaim(training=who))
    print(client.stream_weights([Path(weights).read_bytes()]).version)
    client.submit([group])
    print(*sorted(one.state.value for one in client.stream(group.rollout_ids(), 60)))
    print(*[one.reward for one in client.wait(group.rollout_ids(), 60)])
    client.cancel(group.rollout_ids())
    client.acknowledge([group.group_id])
"""


def release(commit: str, directory: Path) -> Release:
    try:
        return Release.of(commit, directory / commit)
    except subprocess.CalledProcessError:
        pytest.skip(f"this clone's history lacks {commit}: `git fetch --unshallow`")


@pytest.mark.parametrize("commit", EARLIER)
def test_an_upgrade_loses_nothing(commit: str, tiny_model: Path, tmp_path: Path) -> None:
    earlier = release(commit, tmp_path)
    assert lost_in_upgrade(earlier, tmp_path / "run", tiny_model) == []
    log = (tmp_path / "run/service.log").read_text()
    assert "Traceback" not in log
    if commit == EARLIER[0]:
        assert "journal.sqlite: from version 4 to 5" in log
        refused = earlier.python("-m", "prorl_service.cli", "serve", *unused(tmp_path / "run"))
        assert refused.returncode == 2
        assert re.search("has version 5, this service needs version 4", refused.stderr)
        assert "Traceback" not in refused.stderr


def unused(directory: Path) -> Iterator[str]:
    yield from ("--backend", "http://127.0.0.1:1", "--port", "0")
    yield from ("--journal", str(directory / "journal.sqlite"), "--resume")


def test_a_front_waits_until_a_service_of_another_release_is_upgraded(
    tiny_model: Path, tmp_path: Path
) -> None:
    earlier, now = release(EARLIER[-1], tmp_path), Release()
    (tmp_path / "services").mkdir(mode=0o700)
    journal, one = tmp_path / "journal.sqlite", group("g", n=2)
    with (
        now.engine(tiny_model) as engine,
        now.front(engine.url, tmp_path) as front,
        RolloutClient(front.url) as client,
    ):
        with earlier.service(None, journal):
            client.submit([one])
            while not (behind := client.status().services) or "asked yet" in behind[0].problem:
                time.sleep(0.05)
            problem = "is prorl-service 0.2.0, its front 0.3.0: install one on both"
            assert (behind[0].problem, behind[0].load) == (problem, 0)
        with now.service(None, journal):
            ended = client.wait(one.rollout_ids(), WAIT_S)
    assert {rollout.reward for rollout in ended} == {1.0}


@pytest.mark.parametrize("side", ["service", "client"])
def test_a_trainer_and_a_service_of_two_releases_work_together(
    side: str, tiny_model: Path, tmp_path: Path
) -> None:
    earlier, now = release(EARLIER[-1], tmp_path), Release()
    served, calling = (earlier, now) if side == "service" else (now, earlier)
    asked = group("g", n=4).model_dump_json(exclude_defaults=True)
    journal = tmp_path / "journal.sqlite"
    with served.engine(tiny_model) as engine, served.service(engine.url, journal) as running:
        weights = str(tiny_model / "model.safetensors")
        done = calling.python("-c", CALLS, running.url, weights, asked)
        assert done.returncode == 0, done.stderr
        assert done.stdout.split("\n") == ["1", "done done done done", "1.0 1.0 1.0 1.0", ""]
        looked = calling.python("-m", "prorl_service.cli", "status", "--url", running.url)
    assert "Traceback" not in looked.stderr
    if side == "service":
        assert looked.returncode == 0
        assert re.match("the service is prorl-service 0.2.0, this client is", looked.stderr)
    else:  # a client of 0.2 refuses fields that it does not know
        assert "the client and the service must be of the same version" in looked.stderr
