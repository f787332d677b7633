"""The server of the rollout `tiny`, without Ray, as verl and the plug-in expect vLLM's to be."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from recipes.common.verl_cpu.server import TinyServer

PROMPT = [17, 4, 99, 23]
LONG: dict[str, Any] = {"ignore_eos": True, "max_tokens": 200}


@pytest.fixture
async def server(policy: Path) -> AsyncIterator[TinyServer]:
    server = TinyServer(0, str(policy), max_model_len=256, max_tokens=24)
    await server.start()
    yield server
    await server.stop()


async def generate(
    server: TinyServer, prompt_ids: list[int] = PROMPT, **sampling_params: Any
) -> Any:
    return await server.generate(prompt_ids, sampling_params, request_id="any")


async def test_a_seed_determines_the_output(server: TinyServer) -> None:
    first, same, other = [await generate(server, seed=seed) for seed in (1, 1, 2)]
    assert first.token_ids == same.token_ids != other.token_ids


async def test_stop_tokens_end_the_output_and_belong_to_it(server: TinyServer) -> None:
    full = await generate(server, temperature=0, ignore_eos=True)
    stop = full.token_ids[5]
    output = await generate(server, temperature=0, ignore_eos=True, stop_token_ids=[stop])
    assert output.token_ids == full.token_ids[: full.token_ids.index(stop) + 1]
    assert output.stop_reason == "completed"


async def test_aborted_requests_return_what_they_have(server: TinyServer) -> None:
    call = asyncio.create_task(generate(server, **LONG))
    await tokens(server, 3)
    await server.abort_all_requests()
    output = await call
    assert output.stop_reason == "aborted"
    assert 3 <= len(output.token_ids) == len(output.log_probs) < 200


async def test_requests_wait_for_new_weights(server: TinyServer, policy: Path) -> None:
    await server.abort_all_requests()
    await server.sleep()
    call = asyncio.create_task(generate(server))
    await server.wake_up(["weights"])
    await server.update_weights(str(policy / "model.safetensors"), 7)
    await server.wake_up(["kv_cache"])
    assert not server.batcher.running
    await server.resume_generation()
    assert (await call).extra_fields["global_steps"] == 7


async def test_a_server_that_left_aborts_new_requests(server: TinyServer) -> None:
    await server.abort_all_requests(reject_request=True)
    await server.sleep()
    output = await generate(server)
    assert (output.token_ids, output.stop_reason) == ([], "aborted")
    await server.wake_up()
    await server.resume_generation()
    assert (await generate(server)).stop_reason == "completed"


async def test_sleep_waits_for_running_requests(server: TinyServer) -> None:
    call = asyncio.create_task(generate(server, **LONG))
    await tokens(server, 3)
    await server.sleep()
    assert len((await call).token_ids) == 200


async def test_a_cancelled_call_stops_sampling(server: TinyServer) -> None:
    call = asyncio.create_task(generate(server, **LONG))
    await tokens(server, 3)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not server.batcher.running


@pytest.mark.parametrize("params", [{"repetition_penalty": 1.1}, {"n": 2}, {"unheard_of": 1}])
async def test_unsupported_parameters_are_refused(
    server: TinyServer, params: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=next(iter(params))):
        await generate(server, **params)


async def tokens(server: TinyServer, count: int) -> None:
    """Returns when `count` tokens were sampled."""
    async with asyncio.timeout(30):
        while server.batcher.counters.generation_tokens < count:  # noqa: ASYNC110 (no event)
            await asyncio.sleep(0)
