"""Sessions of several turns on a vLLM whose KV cache holds five of them, with all at once and with
admission by the cache. A random Qwen3 of 50 M parameters, whose prefill costs.

Both go through the service's pool, router and retries; `fixed` leaves the line for the cache out.
"""

import asyncio
import time
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory

from bench.frame import Found, Row, alternate, ratios
from bench.vllm_training.weights import random_model
from prorl_service.inference.cache_budget import CachePlace
from prorl_service.inference.pool import BackendPool
from prorl_service.schemas import BackendSpec, Sampling
from tests.vllm_engine import PYTHON, vllm

SHAPE = {
    **{"hidden_size": 768, "intermediate_size": 2048, "head_dim": 64},
    **{"num_hidden_layers": 8, "num_attention_heads": 12, "num_key_value_heads": 4},
}
OPTIONS = (
    *("--dtype", "float32", "--enforce-eager", "--max-model-len", "1024", "--max-num-seqs", "64"),
    *("--kv-cache-memory-bytes", str(2**28), "--block-size", "32"),
    *("--num-gpu-blocks-override", "96"),
)
SESSIONS, TURNS, TOKENS, ROUNDS = 24, 6, 48, 3
"""Each turn adds as many tokens to the prompt as it samples: `TOKENS`."""
VOCABULARY, CONTEXT = 300, 1024
NAMES = ("fixed", "adaptive")
SETTLED_S = 3.0
"""Seconds until a probe has seen the end of the last call."""


def measure(quick: bool) -> Found | None:
    if not PYTHON.exists():
        return None
    with TemporaryDirectory() as directory:
        path = Path(directory)
        model = random_model(path / "model", SHAPE)
        for name in ("config.json", "generation_config.json"):  # answers end by length alone
            file = model / name
            file.write_text(file.read_text().replace('"eos_token_id"', '"no_eos"'))
        with vllm(PYTHON, model, log=path / "engine.vllm", options=OPTIONS) as engine:
            ways = {name: partial(run, engine.url, path, name, quick) for name in NAMES}
            found = alternate(ways, 1 if quick else ROUNDS)
    fixed, adaptive = (found[name] for name in NAMES)
    speeds = [[one["sessions_per_s"] for one in rows] for rows in (adaptive, fixed)]
    headline = {
        "kv_preemptions_fixed": sum(one["preemptions"] for one in fixed),
        "kv_preemptions_adaptive": sum(one["preemptions"] for one in adaptive),
        "kv_throughput_ratio": round(median(ratios(*speeds)), 3),
    }
    return Found([*fixed, *adaptive], headline)


def run(url: str, directory: Path, name: str, quick: bool, number: int) -> Row:
    return asyncio.run(_run(url, directory / f"{name}{number}", name, 8 if quick else SESSIONS))


async def _run(url: str, spool: Path, name: str, sessions: int) -> Row:
    async with BackendPool(spool) as pool:
        before = await pool.add(BackendSpec(url=url))
        began = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for number in range(sessions):
                seeded = Random(f"{spool} {number}")  # no other run's prompts, which are cached
                tasks.create_task(_session(pool, f"s{number}", seeded, name == NAMES[1]))
        took_s = time.monotonic() - began
        await asyncio.sleep(SETTLED_S)
        [after] = pool.statuses()
    assert before.gauges is not None
    assert after.gauges is not None
    return {
        "who": name,
        "preemptions": after.gauges.preemptions - before.gauges.preemptions,
        "prefix_hits": round(after.cached_tokens / after.prompt_tokens, 3),
        "prompt_tokens_computed": after.prompt_tokens - after.cached_tokens,
        "seconds": round(took_s, 1),
        "sessions_per_s": round(sessions / took_s, 4),
    }


async def _session(pool: BackendPool, name: str, seeded: Random, is_adaptive: bool) -> None:
    def tokens() -> list[int]:
        return [seeded.randrange(VOCABULARY) for _ in range(TOKENS)]

    with pool.session(name) as session:
        ids = tokens()
        if is_adaptive:
            await session.enter(CachePlace("bench", name, len(ids), CONTEXT - len(ids)))
        for _ in range(TURNS):
            answer = await session.generate(
                ids, sampling=Sampling(), max_tokens=TOKENS, seed=None, stop_token_ids=[]
            )
            ids += [*answer.token_ids, *tokens()]
