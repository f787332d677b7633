"""The terms on which a trainer sends weights."""

from pathlib import Path
from typing import Any

import pytest

from prorl_service.errors import BackendRejected
from prorl_service.inference.pool import BackendPool
from prorl_service.schemas import BackendSpec, WeightsForm, WeightsQuery, WeightsTerms
from prorl_service.testing.loopback import Handler
from tests.inference.scripted_backend import answers, backend_of

NO_TRANSFER: dict[str, Any] = {"model_config": {"dtype": "torch.bfloat16"}}
PLUGIN = NO_TRANSFER | {"weight_transfer_config": {"backend": "prorl"}}
LORA = PLUGIN | {"lora_config": {"max_lora_rank": 16}}
RUNTIME = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": True}


def vllm(
    root: Path, config: dict[str, Any], environment: dict[str, Any] | None = None, **state: Any
) -> dict[str, Handler]:
    """Returns routes of a vLLM that serves `root`; `state`: version label and adapter names."""
    model = {"id": "m", "root": str(root), "max_model_len": 64, "owned_by": "vllm"}
    adapters = [{"id": name, "root": "/tmp/x"} for name in state.get("adapters", [])]
    return {
        "/health": answers({}),
        "/v1/models": answers({"data": [model, *adapters]}),
        "/weight_info": answers({"weight_version": state.get("version", "default")}),
        "/is_paused": answers({"is_paused": False}),
        "/server_info": answers({"vllm_config": config, "vllm_env": environment or {}}),
    }


async def terms(
    spool: Path, routes: dict[str, Handler], *, rank: int = 0, base: str = "", as_file: bool = True
) -> WeightsTerms:
    async with backend_of(routes) as backend, BackendPool(spool) as pool:
        await pool.add(BackendSpec(url=backend.url))
        query = WeightsQuery(as_file=as_file, lora_rank=rank, base=base)
        agreed = await pool.weights.terms(query)
        assert (Path(agreed.directory) / agreed.probe).exists()
        return agreed


async def test_weights_are_wanted_in_the_type_that_the_engine_computes_in_if_it_names_one(
    tiny_model: Path, tmp_path: Path
) -> None:
    routes = vllm(tiny_model, PLUGIN)
    agreed = await terms(tmp_path, routes)
    assert (agreed.form, agreed.dtype) == (WeightsForm.MODEL, "bfloat16")
    del routes["/server_info"]
    assert (await terms(tmp_path, routes)).dtype is None


async def test_an_engine_without_the_plug_in_is_refused_with_the_flag_that_helps(
    tiny_model: Path, tmp_path: Path
) -> None:
    with pytest.raises(BackendRejected, match="takes no files of weights") as caught:
        await terms(tmp_path, vllm(tiny_model, NO_TRANSFER))
    assert "--weight-transfer-config" in caught.value.hint
    assert (await terms(tmp_path, vllm(tiny_model, NO_TRANSFER), as_file=False)).dtype == "bfloat16"


async def test_an_adapter_is_wanted_where_the_engine_can_load_it(
    tiny_model: Path, tmp_path: Path
) -> None:
    for state in ({}, {"version": "3", "adapters": ["prorl-1"]}):
        routes = vllm(tiny_model, LORA, RUNTIME, **state)
        agreed = await terms(tmp_path, routes, rank=16, base=str(tiny_model))
        assert (agreed.form, agreed.reason) == (WeightsForm.ADAPTER, "")


@pytest.mark.parametrize(
    ("config", "environment", "state", "rank", "base", "reason"),
    [
        (LORA, {}, {}, 8, None, "takes no LoRA adapters"),
        (PLUGIN, RUNTIME, {}, 8, None, "takes no LoRA adapters"),
        (LORA, RUNTIME, {}, 17, None, "up to rank 16"),
        (LORA, RUNTIME, {}, 8, "other/base", "the adapter is for other/base"),
        (LORA, RUNTIME, {"version": "3"}, 8, None, "no longer has the weights it was started with"),
        (
            *(LORA, RUNTIME, {"version": "3", "adapters": ["another's"]}, 8, None),
            "no longer has the weights it was started with",
        ),
    ],
)
async def test_an_adapter_that_the_engine_cannot_load_is_merged(
    tiny_model: Path,
    tmp_path: Path,
    config: dict[str, Any],
    environment: dict[str, Any],
    state: dict[str, Any],
    rank: int,
    base: str | None,
    reason: str,
) -> None:
    routes = vllm(tiny_model, config, environment, **state)
    agreed = await terms(tmp_path, routes, rank=rank, base=base or str(tiny_model))
    assert agreed.form is WeightsForm.MODEL
    assert reason in agreed.reason
