"""Behaviour of engines that the service relies on, of others' engines too: `scripts/test-vllm` and
`scripts/test-sglang`."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from prorl_service.errors import BackendRejected
from prorl_service.inference.backend import Backend
from prorl_service.inference.engines import handout, sglang
from prorl_service.inference.reference_engine.tiny import build_tiny_model
from prorl_service.inference.sources import Broadcast, WeightDirectory, WeightFile, WeightSource
from prorl_service.schemas import Sampling
from prorl_service.utils import differences
from prorl_trl import nccl
from prorl_trl.weights import PolicyWeights
from tests import real_engines
from tests.inference.adapters import make_adapter
from tests.inference.contract import (
    CONTEXT,
    EOS,
    GREEDY,
    TIMEOUT_S,
    TOKENIZER_LENGTH,
    TOLERANCE,
    VOCABULARY,
    Engine,
    ask,
    change_weights_during_a_call,
    endless_prompt,
    error,
    exact_logprobs,
    prompt,
)

pytestmark = pytest.mark.processes

OWN_DESCRIPTOR = 900
"""Number of a file descriptor that no other process has open."""


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Checkpoints of one architecture; the first is what the engines start with."""
    directories = [tmp_path_factory.mktemp(f"checkpoint-{seed}") for seed in range(2)]
    for seed, directory in enumerate(directories):
        build_tiny_model(directory, seed=seed)
    return directories


@pytest.fixture(scope="module", params=real_engines.ENGINES)
def engine(request: pytest.FixtureRequest, checkpoints: list[Path]) -> Iterator[Engine]:
    log = checkpoints[0] / "log"
    with real_engines.engine(request.param, checkpoints[0], log=log) as process:
        metrics = "sglang" if request.param == "sglang" else "vllm"
        yield Engine(process.url, checkpoints[0], metrics)


@pytest.fixture
async def backend(engine: Engine) -> AsyncIterator[Backend]:
    async with engine.backend() as backend:
        info = await backend.describe()  # as the service does before any call
        backend.vocab_size = VOCABULARY
        await backend.check_logprobs(info, may_probe=True)
        yield backend


async def test_it_says_how_much_it_holds_and_how_long_calls_took(
    engine: Engine, backend: Backend
) -> None:
    before = await backend.load(timeout_s=TIMEOUT_S)
    answer = await ask(backend, prompt(40), max_tokens=8)
    after = await backend.load(timeout_s=TIMEOUT_S)
    assert before is not None
    assert before.kv_tokens is not None
    assert before.kv_tokens >= CONTEXT
    assert after is not None
    if engine.kind == "sglang":  # it tells no sums, and not when it was started
        assert (after.times, after.started_at) == (None, None)
    else:
        assert before.started_at is not None
        assert after.started_at == before.started_at
        assert after.timed_calls == before.timed_calls + 1
        assert after.times is not None
        assert before.times is not None
        assert after.times.decode_s > before.times.decode_s
    if backend.engine.kind == "vllm":  # it tells the times of no single call
        assert answer.times is None
    else:
        assert answer.times is not None
        assert answer.times.prefill_s > 0
        assert answer.times.decode_s > 0


async def test_it_says_what_share_of_its_cache_running_calls_use(
    engine: Engine, backend: Backend
) -> None:
    asked = await endless_prompt(backend)
    call = asyncio.create_task(ask(backend, asked, sampling=GREEDY, max_tokens=1000))
    used = 0.0
    while not call.done():
        gauges = await backend.load(timeout_s=TIMEOUT_S)
        assert gauges is not None
        used = max(used, gauges.kv_use)
    assert 0 < used < 1


# --- tokens and logprobs ------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
async def test_logprobs_are_those_of_a_plain_forward_pass(
    engine: Engine, backend: Backend, temperature: float
) -> None:
    sampling = Sampling(temperature=temperature)
    for length in (1, 7, 300):
        asked = prompt(length)
        answer = await ask(backend, asked, sampling=sampling, max_tokens=24, seed=length)
        assert error(engine.checkpoint, asked, answer, temperature) < TOLERANCE


async def test_temperature_zero_is_greedy(engine: Engine, backend: Backend) -> None:
    answer = await ask(backend, prompt(20), sampling=GREEDY, max_tokens=24)
    exact = exact_logprobs(engine.checkpoint, prompt(20), answer.token_ids)
    assert exact.argmax(-1).tolist() == answer.token_ids


@pytest.mark.parametrize("sampling", [Sampling(top_k=3), Sampling(top_p=0.5)])
async def test_truncated_distributions_have_renormalised_logprobs_or_are_refused(
    engine: Engine, backend: Backend, sampling: Sampling
) -> None:
    if engine.kind == "sglang":
        with pytest.raises(BackendRejected, match="no exact logprobs with top_p"):
            await ask(backend, prompt(9), sampling=sampling)
        return
    answer = await ask(backend, prompt(9), sampling=sampling, max_tokens=32, seed=1)
    exact = exact_logprobs(engine.checkpoint, prompt(9), answer.token_ids)
    for row, token, logprob in zip(exact, answer.token_ids, answer.logprobs, strict=True):
        ranked, order = row.exp().sort(descending=True)
        size = sampling.top_k or int((ranked.cumsum(0) < sampling.top_p).sum()) + 1
        assert token in order[:size].tolist()
        renormalised = row[token] - ranked[:size].sum().log()
        assert abs(float(renormalised) - logprob) < TOLERANCE


async def test_ids_that_the_tokenizer_does_not_know_go_in_and_come_out(
    engine: Engine, backend: Backend
) -> None:
    unknown = list(range(TOKENIZER_LENGTH, VOCABULARY))
    answers = await asyncio.gather(
        *(ask(backend, unknown, seed=seed, session_id=str(seed)) for seed in range(8))
    )
    assert any(token >= TOKENIZER_LENGTH for answer in answers for token in answer.token_ids)
    assert max(error(engine.checkpoint, unknown, answer) for answer in answers) < TOLERANCE


async def test_a_seed_gives_the_same_tokens_alone_and_in_company(backend: Backend) -> None:
    if not (await backend.intake(await backend.describe())).takes_seeds:
        pytest.skip("this engine on a CPU gets no seeds")
    alone = await ask(backend, prompt(30), seed=7)
    company = await asyncio.gather(
        *(ask(backend, prompt(30), seed=seed, session_id=str(seed)) for seed in range(12))
    )
    assert company[7].token_ids == alone.token_ids
    assert len({tuple(answer.token_ids) for answer in company}) == 12


async def test_32_calls_at_once_are_all_exact(engine: Engine, backend: Backend) -> None:
    """Sends more prompt tokens than fit one step, with seeds: vLLM's CPU build ends at that."""
    temperatures = [1.0, 0.7, 1.3, 0.0]

    async def call(number: int) -> float:
        asked, temperature = prompt(1 + 18 * number), temperatures[number % 4]
        answer = await ask(
            backend,
            asked,
            sampling=Sampling(temperature=temperature),
            max_tokens=8 + number,
            seed=number,
            session_id=str(number),
        )
        return error(engine.checkpoint, asked, answer, temperature)

    assert max(await asyncio.gather(*map(call, range(32)))) < TOLERANCE


async def test_a_later_turn_reuses_the_earlier_one(engine: Engine, backend: Backend) -> None:
    first = await ask(backend, prompt(200), session_id="talk")
    asked = prompt(200) + first.token_ids + prompt(40)
    second = await ask(backend, asked, session_id="talk")
    assert second.cached_tokens >= 192
    assert error(engine.checkpoint, asked, second) < TOLERANCE


# --- ends ---------------------------------------------------------------------------------------


async def test_eos_ends_an_answer_and_is_part_of_it(backend: Backend) -> None:
    answers = await asyncio.gather(
        *(ask(backend, prompt(5), max_tokens=60, seed=seed) for seed in range(40))
    )
    for answer in answers:
        ended = answer.finish_reason == "stop"
        assert answer.token_ids.count(EOS) == ended
        assert (answer.token_ids[-1] == EOS) is ended
        assert ended or len(answer.token_ids) == 60
    assert len({answer.finish_reason for answer in answers}) == 2


async def test_a_stop_id_ends_an_answer_and_is_part_of_it(backend: Backend) -> None:
    free = await ask(backend, prompt(30), sampling=GREEDY)
    stop = free.token_ids[5]
    end = free.token_ids.index(stop) + 1
    stops = [stop, VOCABULARY - 1]
    stopped = await ask(backend, prompt(30), sampling=GREEDY, stop_token_ids=stops)
    assert stopped.token_ids == free.token_ids[:end]
    assert stopped.finish_reason == "stop"


async def test_a_stop_text_may_end_an_answer_and_changes_nothing_before(backend: Backend) -> None:
    free = await ask(backend, prompt(30), sampling=GREEDY)
    stops = ["a", "e", "never sampled"]
    stopped = await ask(backend, prompt(30), sampling=GREEDY, stop=stops)
    assert stopped.token_ids == free.token_ids[: len(stopped.token_ids)]
    assert stopped.logprobs == pytest.approx(free.logprobs[: len(stopped.token_ids)], abs=TOLERANCE)


async def test_the_context_bounds_an_answer(backend: Backend) -> None:
    answer = await ask(backend, prompt(CONTEXT - 1), sampling=GREEDY, max_tokens=100)
    assert len(answer.token_ids) == 1


@pytest.mark.parametrize(
    "prompt_ids",
    [prompt(CONTEXT), [], [5, VOCABULARY], [5, -1]],
    ids=["too long", "empty", "unknown id", "negative id"],
)
async def test_impossible_prompts_are_rejected(backend: Backend, prompt_ids: list[int]) -> None:
    with pytest.raises(BackendRejected, match=r"400|does not know"):
        await ask(backend, prompt_ids)


async def test_a_cancelled_call_is_aborted(engine: Engine, backend: Backend) -> None:
    asked = await endless_prompt(backend)
    before = await engine.metric("generation_tokens_total")
    call = asyncio.create_task(ask(backend, asked, sampling=GREEDY, max_tokens=CONTEXT))
    await engine.until("num_requests_running", lambda running: running == 1)
    call.cancel()
    await engine.until("num_requests_running", lambda running: running == 0)
    assert await engine.metric("generation_tokens_total") < before + CONTEXT - len(asked)


# --- pauses and weights -------------------------------------------------------------------------


async def test_the_engine_describes_itself(engine: Engine, backend: Backend) -> None:
    info = await backend.describe()
    assert (info.policy_version or 0, info.max_model_len) == (engine.version, CONTEXT)
    assert (Path(info.root) / "tokenizer.json").is_file()
    assert await backend.is_healthy(timeout_s=TIMEOUT_S)


async def test_calls_freeze_during_a_pause_and_continue_after_it(
    engine: Engine, backend: Backend
) -> None:
    asked = await endless_prompt(backend)
    begun = asyncio.create_task(ask(backend, asked, sampling=GREEDY, max_tokens=1000))
    await engine.until("num_requests_running", lambda running: running == 1)
    await backend.engine.pause("keep")
    new = asyncio.create_task(ask(backend, prompt(10), session_id="new"))
    await asyncio.wait([begun, new], timeout=0.3)
    assert (await backend.describe()).is_paused
    assert await backend.is_healthy(timeout_s=TIMEOUT_S)
    assert not begun.done()
    assert not new.done()
    await backend.engine.resume()
    assert error(engine.checkpoint, asked, await begun) < TOLERANCE
    assert error(engine.checkpoint, prompt(10), await new) < TOLERANCE


async def test_an_aborting_pause_returns_the_sampled_tokens(
    engine: Engine, backend: Backend
) -> None:
    asked = await endless_prompt(backend)
    call = asyncio.create_task(ask(backend, asked, sampling=GREEDY, max_tokens=CONTEXT))
    await engine.until("num_requests_running", lambda running: running == 1)
    await backend.engine.pause("abort")
    answer = await call
    await backend.engine.resume()
    assert answer.finish_reason == "abort"
    assert not answer.token_ids or error(engine.checkpoint, asked, answer) < TOLERANCE


@pytest.fixture(params=["directory", "file", "file that the engine cannot open"])
def source_of(request: pytest.FixtureRequest) -> Iterator[Callable[[Path], WeightSource]]:
    """One of the ways to give weights."""

    def source(checkpoint: Path) -> WeightSource:
        if request.param == "directory":
            return WeightDirectory(str(checkpoint))
        path = checkpoint / "model.safetensors"
        if request.param == "file":
            return WeightFile(path)
        own = os.dup2(files.enter_context(path.open("rb")).fileno(), OWN_DESCRIPTOR)
        files.callback(os.close, own)
        return WeightFile(Path(f"/proc/self/fd/{own}"))

    with ExitStack() as files:
        yield source


async def test_new_weights_serve_calls_in_flight_and_new_ones(
    engine: Engine,
    backend: Backend,
    checkpoints: list[Path],
    source_of: Callable[[Path], WeightSource],
) -> None:
    new = next(c for c in checkpoints if c != engine.checkpoint)
    await change_weights_during_a_call(engine, backend, source_of(new), new)


async def test_differences_serve_like_the_whole_files(
    engine: Engine, backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine does not share the file system: it has another working directory. The third
    difference is broken, and the last is from a file that the engine does not have."""
    monkeypatch.chdir(tmp_path)
    sent: list[str] = []
    send = handout._send

    async def noted(path: Path, *args: Any) -> None:
        sent.append(path.suffix)
        await send(path, *args)

    monkeypatch.setattr(handout, "_send", noted)
    for number, base in enumerate(["", "weights-0", "weights-1", "weights-2", "weights-0"]):
        checkpoint = _trained(engine.checkpoint, tmp_path / f"checkpoint-{number}")
        file = Path("/proc/self/cwd", f"weights-{number}.safetensors")
        shutil.copy(checkpoint / "model.safetensors", file)
        source = WeightFile(file, base=f"{base}.safetensors" if base else "")
        if base:
            assert differences.write(file.with_name(source.base), file, source.difference)
        if number == 3:
            os.truncate(source.difference, source.difference.stat().st_size // 2)
        await engine.load(backend, source, checkpoint)
        answer = await ask(backend, prompt(30))
        assert error(checkpoint, prompt(30), answer) < TOLERANCE
        assert set(answer.policy_versions) == {engine.version}
    whole, difference = ".safetensors", ".difference"
    assert sent == [whole, difference, difference, difference, whole, whole]


def _trained(checkpoint: Path, new: Path) -> Path:
    """Writes a checkpoint of which the larger weights have changed."""
    shutil.copytree(checkpoint, new)
    tensors = load_file(new / "model.safetensors")
    changed = {
        name: torch.where(one.abs() > 0.02, 1.004 * one, one) for name, one in tensors.items()
    }
    save_file(changed, new / "model.safetensors")
    return new


async def test_adapters_serve_calls_in_flight_and_new_ones_until_a_model_comes(
    engine: Engine, backend: Backend, checkpoints: list[Path], tmp_path: Path
) -> None:
    base = engine.checkpoint
    for seed in range(3):
        file, merged = make_adapter(base, tmp_path, seed=seed)
        adapter = WeightFile(file, is_adapter=True)
        may_abort = seed == 0 or engine.kind == "sglang"
        await change_weights_during_a_call(engine, backend, adapter, merged, may_abort=may_abort)
        assert (await backend.describe()).has_first_base
    other = next(c for c in checkpoints if c != base)
    whole = WeightFile(other / "model.safetensors")
    await change_weights_during_a_call(engine, backend, whole, other, may_abort=True)
    assert not (await backend.describe()).has_first_base


async def test_broadcasts_serve_calls_in_flight_and_new_ones(
    engine: Engine, backend: Backend, checkpoints: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With gloo in the place of NCCL; the last one in a new group."""
    if engine.kind != "sglang":
        pytest.skip("vLLM's broadcasts need GPUs, and the reference engine takes none")
    monkeypatch.setattr(sglang, "PART_ELEMENTS", 100_000)
    loop = asyncio.get_running_loop()

    class Receivers(nccl._Engines):
        def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
            joining = backend.join_group({**init_info, "rank_offset": 1}, timeout_s=TIMEOUT_S)
            asyncio.run_coroutine_threadsafe(joining, loop).result()

        def update_weights(self, update_info: dict[str, Any]) -> None:
            change = change_weights_during_a_call(engine, backend, Broadcast(update_info), new)
            asyncio.run_coroutine_threadsafe(change, loop).result()

    sender = None
    for is_other_group in (False, False, True):
        new = next(one for one in checkpoints if one != engine.checkpoint)
        if sender is None or is_other_group:
            sender = await asyncio.to_thread(nccl.TorchSender.open, 1, Receivers(), sender)
        weights = PolicyWeights(load_file(new / "model.safetensors")).whole_model
        sender.source = nccl._Policy(weights, None, torch.device("cpu"))
        await asyncio.to_thread(sender.send_weights)
        assert engine.checkpoint == new


@pytest.mark.parametrize("fault", ["missing", "shape"])
async def test_weights_of_another_model_are_refused_before_any_tensor_changes(
    engine: Engine, backend: Backend, checkpoints: list[Path], tmp_path: Path, fault: str
) -> None:
    tensors = load_file(checkpoints[0] / "model.safetensors")
    name = "model.layers.0.mlp.gate_proj.weight"  # vLLM fuses it with another
    tensors[name] = tensors[name][:-1].clone()
    if fault == "missing":
        del tensors[name]
    file = tmp_path / "model.safetensors"
    save_file(tensors, file)
    with pytest.raises(BackendRejected, match=name):
        await backend.load_weights(WeightFile(file), engine.next_label(), timeout_s=TIMEOUT_S)
    answer = await ask(backend, prompt(30))
    assert error(engine.checkpoint, prompt(30), answer) < TOLERANCE
    assert set(answer.policy_versions) == {engine.version}
