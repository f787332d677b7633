"""Training from a base model, whose rollouts end as its template ends turns."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import trl
from packaging.version import Version
from transformers import AutoTokenizer

from prorl_service.client import RolloutClient
from prorl_service.schemas import FinishReason, Rollout, Sampling
from tests.trl.base_model import END_OF_TEXT, END_OF_TURN, with_split_eos
from tests.trl.conftest import started
from tests.trl.training import Trainings, logged

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:mask_truncated_completions=True judges:UserWarning",
    ),
    pytest.mark.processes,
]
SHORT = {"sampling": Sampling(max_tokens_per_turn=4, seed=0)}
"""Turns of which some end by themselves."""


@pytest.fixture(scope="module")
def base_model(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_split_eos(policy, tmp_path_factory.mktemp("base") / "model")


@pytest.fixture(scope="module")
def base_url(base_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with started(base_model, tmp_path_factory.mktemp("logs")) as url:
        yield url


def last_ids(rollouts: list[Rollout]) -> list[int]:
    return [one.trajectory.segments[-1].response_ids[-1] for one in rollouts if one.trajectory]


def test_the_service_says_which_tokens_end_a_turn(base_url: str, base_model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(base_model)
    ends = tokenizer.convert_tokens_to_ids([END_OF_TEXT, END_OF_TURN])
    with RolloutClient(base_url) as client:
        assert client.status().end_ids == sorted(ends)
    assert tokenizer.eos_token_id == ends[0]


@pytest.mark.parametrize("agent", ["letters", "hasty"])
def test_finished_rollouts_are_trained_on_whatever_token_they_end_on(
    train: Trainings, base_url: str, base_model: Path, agent: str
) -> None:
    trainer = train(url=base_url, policy=base_model, **SHORT, agent=agent)
    assert logged(trainer, "prorl/failed") == [0, 0]
    assert logged(trainer, "grad_norm")[0] > 0
    with RolloutClient(base_url) as client:
        end_ids = client.status().end_ids
    ends = last_ids(train.observed[:8])
    tokenizer = AutoTokenizer.from_pretrained(base_model)
    assert tokenizer.convert_tokens_to_ids(END_OF_TURN) in ends
    if agent == "hasty":
        assert not {*ends} <= {*end_ids}
        reasons = {one.trajectory.finish_reason for one in train.observed if one.trajectory}
        assert reasons == {FinishReason.FINISHED}
    if Version(trl.__version__) >= Version("1.14.2"):
        cut = sum(end not in end_ids for end in ends) / len(ends)
        assert logged(trainer, "completions/clipped_ratio")[0] == pytest.approx(cut)


def test_rollouts_that_trl_would_take_for_cut_off_are_refused_with_the_setting_to_change(
    train: Trainings, base_url: str, base_model: Path
) -> None:
    given = {"url": base_url, "policy": base_model, "agent": "hasty", "on_failure": "raise"}
    options = {"mask_truncated_completions": True}
    with pytest.raises(Exception, match=r"set GRPOConfig\(mask_truncated_completions=False\)"):
        train(**given, **SHORT, options=options)
