"""A training's hold of the policy, from its own process."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from prorl_service import local
from prorl_service.client import RolloutClient, policy
from prorl_service.client.policy import HeldPolicy, kept_training_id
from prorl_service.errors import PolicyTaken
from prorl_service.schemas import PolicyClaim
from tests.trainers import trainer, training

pytestmark = pytest.mark.processes


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with local.service([], log=tmp_path / "log", options=["--sandbox", "process"]) as service:
        yield service.url


def is_live(url: str) -> bool:
    with RolloutClient(url) as client:
        held = client.status().training
    return held is not None and held.is_live


def test_a_policy_is_free_once_it_is_released(url: str) -> None:
    with HeldPolicy(url) as held:
        assert is_live(url)
        assert held.is_held
    assert not is_live(url)
    with trainer(url):
        assert is_live(url)


def test_another_training_is_refused_in_one_line_and_a_later_one_of_the_process_is_not(
    url: str,
) -> None:
    with trainer(url), pytest.raises(PolicyTaken) as refusal:
        HeldPolicy(url).claim()
    assert "\n" not in str(refusal.value)
    assert "user ada, pid 4711 on node1" in str(refusal.value)
    first = HeldPolicy(url, take_over=True).claim()
    with HeldPolicy(url) as second:
        assert (first.is_held, second.is_held) == (False, True)


def test_a_holder_learns_that_it_lost_the_policy(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "RENEW_S", 0.05)
    with HeldPolicy(url) as held:
        with RolloutClient(url) as client:
            client.claim_policy(PolicyClaim(training=training("other"), take_over=True))
        with pytest.raises(PolicyTaken, match="training other"):  # noqa: PT012
            while True:
                held.check()
                time.sleep(0.02)


def test_the_id_of_a_training_is_kept_with_its_checkpoints(url: str, tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    assert kept_training_id(directory) is None
    with HeldPolicy(url, kept_in=directory) as held:
        assert kept_training_id(directory) == held.training.training_id
        again = HeldPolicy(url, kept_training_id(directory), kept_in=directory).claim()
        assert again.training.training_id == held.training.training_id
    again.release()
