"""Training of VeRL with its own vLLM replica on a CPU, by its own rollouts and the service's.

Runs in the environment of `scripts/setup-verl-vllm`.
"""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from prorl_service import local
from tests.verl.data import build_policy, write_counting_tasks
from tests.verl.test_platform import REWARD
from tests.verl.test_training import (
    DIFFERENCE,
    PRORL,
    assert_nothing_is_left,
    write_tasks,
)
from tests.verl.training import SERVICE_OPTIONS, run_main_ppo

pytestmark = pytest.mark.timeout(1800)
ROLLOUT = "actor_rollout_ref.rollout."
ENGINE = f"++{ROLLOUT}engine_kwargs.vllm."
VLLM = {
    f"{ROLLOUT}name": "vllm",
    f"{ROLLOUT}dtype": "float32",
    f"{ROLLOUT}enforce_eager": True,
    f"{ROLLOUT}enable_chunked_prefill": False,
    f"{ROLLOUT}free_cache_engine": False,
    f"++{ROLLOUT}enable_sleep_mode": False,
    f"{ENGINE}kv_cache_memory_bytes": 2**26,
    f"{ENGINE}block_size": 32,
    f"{ENGINE}worker_extension_cls": "recipes.common.verl_cpu.vllm_worker.CPUWorkerExtension",
}
EXACT = 1e-5
"""Largest difference of a probability between vLLM and trainer, in fp32."""


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a policy whose ids are all the tokenizer's; VeRL lets vLLM sample only those."""
    directory = build_policy(tmp_path_factory.mktemp("policy"))
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    model.resize_token_embeddings(len(AutoTokenizer.from_pretrained(directory)))
    model.save_pretrained(directory)
    return directory


def test_stock_verl_trains_in_step_with_its_rollouts(directory: Path) -> None:
    write_counting_tasks(directory)
    run = run_main_ppo(directory, VLLM | REWARD)
    assert max(run.values(DIFFERENCE)) < EXACT
    assert min(run.values("actor/grad_norm")) > 0
    assert run.survivors == []


def test_the_service_rolls_out_on_verls_vllm(directory: Path, tmp_path: Path) -> None:
    write_tasks(directory, *[{}] * 16)
    log = tmp_path / "service.log"
    with local.service([], log=log, options=SERVICE_OPTIONS) as service:
        run = run_main_ppo(directory, PRORL | VLLM | {"prorl.url": service.url})
        assert_nothing_is_left(service, run)
    assert max(run.values(DIFFERENCE)) < EXACT
    assert min(run.values("actor/grad_norm")) > 0
    assert run.values("prorl/failed") == [0, 0]
    assert run.values("prorl/policy_lag") == [0, 0]
