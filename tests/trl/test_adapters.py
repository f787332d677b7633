"""LoRA training on real engines: what is sent, and that engine and trainer stay one policy."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from peft import LoraConfig

from prorl_service import local
from prorl_service.schemas import Rollout
from prorl_trl import ProRLRollout
from tests import vllm_engine
from tests.trl.training import SERVICE_OPTIONS, TWO_TURNS, logged, make_trainer

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*rollout_func.*experimental:UserWarning",
    "ignore:.*gradient_checkpointing.*:FutureWarning",
)


@pytest.fixture(params=vllm_engine.ENGINES)
def fresh_url(request: pytest.FixtureRequest, policy: Path, tmp_path: Path) -> Iterator[str]:
    """A service whose engine has the weights that it was started with."""
    with (
        vllm_engine.engine(request.param, policy, log=tmp_path / "engine.log") as engine,
        local.service(
            [engine.url], log=tmp_path / "service.log", options=SERVICE_OPTIONS
        ) as service,
    ):
        yield service.url


def test_plain_adapters_go_alone_others_are_merged_and_after_that_all_are(
    fresh_url: str, policy: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "prorl_trl.weights")
    for options, sent in [
        ({}, "(adapter alone)"),
        ({"use_rslora": True}, "(adapter alone)"),
        ({"use_dora": True}, "(whole model)"),
        ({}, "has other weights than it was started with"),
    ]:
        caplog.clear()
        config = LoraConfig(
            r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False, **options
        )
        observed: list[Rollout] = []
        rollouts = ProRLRollout(fresh_url, observe=observed.extend, **TWO_TURNS)
        trainer = make_trainer(rollouts, policy, tmp_path, peft_config=config)
        trainer.train()
        assert sent in caplog.text
        assert max(logged(trainer, "sampling/sampling_logp_difference/max")) < 1e-4
        assert min(logged(trainer, "grad_norm")) > 0
        assert logged(trainer, "prorl/policy_lag") == [0, 0]
        versions = [
            (rollout.oldest_policy_version, rollout.newest_policy_version) for rollout in observed
        ]
        assert versions == [(0, 0)] * 8 + [(1, 1)] * 8
