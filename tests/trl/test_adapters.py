"""LoRA training on real engines: what is sent, and that engine and trainer keep one policy."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from prorl_service import local
from prorl_service.client.weights_copy import WeightsCopy
from prorl_service.schemas import WeightsForm, WeightsQuery
from prorl_trl.adapters import adapted_layers, adapter_of
from prorl_trl.nccl import Broadcaster
from prorl_trl.weights import PolicyWeights, checkpoint_names, send
from tests import real_engines
from tests.trainers import trainer
from tests.trl.training import SERVICE_OPTIONS, Trainings, logged, pushed, worst

pytestmark = pytest.mark.processes


@pytest.fixture(params=real_engines.ENGINES)
def fresh_url(request: pytest.FixtureRequest, policy: Path, tmp_path: Path) -> Iterator[str]:
    """Yields a service whose engine has the weights that it was started with."""
    with (
        real_engines.engine(request.param, policy, log=tmp_path / "engine.log") as engine,
        local.service(
            [engine.url], log=tmp_path / "service.log", options=SERVICE_OPTIONS
        ) as service,
    ):
        yield service.url


def test_plain_adapters_are_sent_alone_until_another_kind_is_merged(
    train: Trainings, fresh_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "prorl_trl.weights")
    for options, sent in [
        ({}, "(adapter alone)"),
        ({"use_rslora": True}, "(adapter alone)"),
        ({"use_dora": True}, "(whole model)"),
        ({}, "no longer has the weights it was started with"),
    ]:
        caplog.clear()
        config = LoraConfig(
            r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False, **options
        )
        train.observed.clear()
        trainer = train(url=fresh_url, peft_config=config)
        assert sent in caplog.text
        assert worst(trainer) < 1e-4
        assert min(logged(trainer, "grad_norm")) > 0
        assert logged(trainer, "prorl/policy_lag") == [0, 0]
        versions = [
            (rollout.oldest_policy_version, rollout.newest_policy_version)
            for rollout in train.observed
        ]
        first, second = pushed(trainer)
        assert versions == [(first, first)] * 8 + [(second, second)] * 8


def test_adapters_in_quick_succession_are_sent_alone_until_whole_weights(
    fresh_url: str, policy: Path
) -> None:
    """No probe of the engine comes between."""
    base = AutoModelForCausalLM.from_pretrained(policy)
    model = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj"]))
    tensors = dict(model.state_dict())
    adapter = adapter_of(model, tensors)
    assert adapter is not None
    query = WeightsQuery(lora_rank=adapter.rank, base=adapter.base)
    alone = PolicyWeights(checkpoint_names(tensors), adapted_layers(model), adapter)
    whole = replace(alone, adapter=None)
    with trainer(fresh_url) as client:
        forms = []
        for weights in [alone, alone, alone, whole, alone]:
            forms.append(client.weights_terms(query).form)
            send(client, weights, Broadcaster(), WeightsCopy())
        forms.append(client.weights_terms(query).form)
    assert forms == [WeightsForm.ADAPTER] * 4 + [WeightsForm.MODEL] * 2
