"""The service and real vLLM on one GPU: `python -m bench.gpu [PART...]`.

`fp32`, `bf16`: the demo's training by TRL, with the trainer on the GPU in fp32 and vLLM in that
type. `reference`: the same with the reference engine, on the CPU. `weights`: new ones of a random
Qwen3-4B, from a trainer in fp32 on the GPU to vLLM in bf16. `load`: rollouts of that model through
the service, and the same calls by a bare loop in threads, which has no template, queue or record.
Needs vLLM's build for CUDA in `.venv-vllm`. Processes may run parts at the same time, but `load`
alone. Trainings were run as they are here, `weights` and `load` in part, in an earlier form. Not
measured: NCCL, which needs a GPU for each side.
"""

import json
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import torch

from bench.frame import Found, Row, alternate, run
from bench.nodes.agent import AGENT, GROUP_SIZE, group
from bench.vllm_training import training
from bench.vllm_training.weights import push, random_model, row
from prorl_service import local
from prorl_service.client import RolloutClient
from prorl_service.inference.engines.vllm_routes import GENERATE
from prorl_service.schemas import Limits, Sampling
from prorl_service.tokens.chat import ChatFormat
from tests import vllm_engine
from tests.vllm_engine import PYTHON

ENGINES = {"reference": "reference engine", "fp32": "vLLM, fp32", "bf16": "vLLM, bf16"}
TRAINERS = ("GRPOTrainer", "GRPOTrainer, dynamic sampling")
QWEN3_4B = {
    "vocab_size": 151_936,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "head_dim": 128,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "initializer_range": 0.02,
}
SHARE = ("--gpu-memory-utilization", "0.4")
ROLLOUTS, CALLS, TOKENS, ROUNDS = 256, 4, 128, 3
"""Rollouts at once, calls of each, tokens of each reply; random weights end none early."""
OPTIONS = ("--dtype", "bfloat16", "--max-model-len", "4096", "--max-num-seqs", str(ROLLOUTS))
WAIT_S = 300.0


def trained(name: str, quick: bool) -> Found:
    steps, engines = 2 if quick else 40, [ENGINES[name]]
    rows = training.measure((0,), steps, engines=engines, trainers=TRAINERS, use_cpu=False)
    figures = {
        f"{name}_after": min(one["after"] for one in rows),
        f"{name}_logprob_diff_max": max(one["logprob_diff_max"] for one in rows),
        f"{name}_versions_wrong": sum(one["versions_wrong"] for one in rows),
    }
    return Found(rows, figures)


def weights(quick: bool) -> Found:
    with TemporaryDirectory(prefix="prorl-bench-") as directory:
        model = random_model(Path(directory), QWEN3_4B, "cuda")
        pushed = partial(push, model, "vllm", device="cuda", options=SHARE)
        found = row("Qwen3-4B", "vLLM", pushed)
    return Found([found], {"push_s": found["s"]})


def load(quick: bool) -> Found:
    with TemporaryDirectory(prefix="prorl-bench-") as directory:
        model, logs = random_model(Path(directory), QWEN3_4B, "cuda"), Path(directory)
        options = [*AGENT, "--run-workers", str(ROLLOUTS)]
        with (
            vllm_engine.vllm(
                PYTHON, model, log=logs / "vllm", options=[*OPTIONS, *SHARE]
            ) as engine,
            local.service([engine.url], log=logs / "service", options=options) as service,
            RolloutClient(service.url) as client,
        ):
            prompt = ChatFormat.load(model).prompt_ids(group(1).task.messages)
            ours, bare = partial(_by_service, client), partial(_by_bare_loop, engine.url, prompt)
            ours(), bare()  # kernels compile
            turns = {"service": partial(_turn, ours), "bare loop": partial(_turn, bare)}
            found = alternate(turns, 1 if quick else ROUNDS)
    speed, bare_speed = (median(one["tokens_per_s"] for one in own) for own in found.values())
    rows = [{"who": who, **one} for who, own in found.items() for one in own]
    return Found(rows, {"of_bare_loop": round(speed / bare_speed, 3)})


def _turn(sample: Callable[[], int], _: int) -> Row:
    began = time.monotonic()
    tokens = sample()
    seconds = time.monotonic() - began
    return {"s": round(seconds, 2), "tokens_per_s": round(tokens / seconds)}


def _by_service(client: RolloutClient) -> int:
    """Returns the number of sampled tokens."""
    limits = Limits(max_turns=CALLS, run_timeout_s=WAIT_S)
    more = {"sampling": Sampling(max_tokens_per_turn=TOKENS), "limits": limits}
    groups = [group(CALLS).model_copy(update=more) for _ in range(ROLLOUTS // GROUP_SIZE)]
    client.submit(groups)
    ids = [one for each in groups for one in each.rollout_ids()]
    ended = [one.trajectory for one in client.stream(ids, timeout_s=WAIT_S)]
    return sum(sum(segment.loss_mask) for one in ended if one for segment in one.segments)


def _by_bare_loop(url: str, prompt: list[int]) -> int:
    """Returns the number of sampled tokens."""
    parameters = {"temperature": 1.0, "max_tokens": TOKENS, "logprobs": 0, "detokenize": False}

    def rollout(_: int) -> int:
        ids, sampled = list(prompt), 0
        engine = HTTPConnection(urlsplit(url).netloc, timeout=WAIT_S)
        for _ in range(CALLS):
            body = json.dumps({"token_ids": ids, "sampling_params": parameters})
            engine.request("POST", GENERATE, body, {"Content-Type": "application/json"})
            [choice] = json.load(engine.getresponse())["choices"]
            sampled += len(choice["token_ids"])
            ids += [*choice["token_ids"], *prompt]
        return sampled

    with ThreadPoolExecutor(ROLLOUTS) as threads:
        return sum(threads.map(rollout, range(ROLLOUTS)))


def _on_gpu(part: Callable[[bool], Found], quick: bool) -> Found | None:
    """Adds what it ran on."""
    if not torch.cuda.is_available():
        return None
    found = part(quick)
    release = subprocess.check_output([str(PYTHON), "-c", vllm_engine.VLLM_VERSION], text=True)
    found.headline.update(gpu=torch.cuda.get_device_name(), torch=torch.__version__)
    found.headline.update(vllm=release.strip())
    return found


if __name__ == "__main__":
    parts: dict[str, Callable[[bool], Found]] = {name: partial(trained, name) for name in ENGINES}
    parts |= {"weights": weights, "load": load}
    run("gpu", {name: partial(_on_gpu, part) for name, part in parts.items()})
