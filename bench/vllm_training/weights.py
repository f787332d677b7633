"""Time of new weights from a trainer in fp32 to an engine in bf16, at 1 and 4 GB of fp32.

Next to it, the time that the disk takes to write and sync the same bytes. The seconds of a push are
the trainer's, from its tensors until the engine serves with them.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from bench.frame import Found, Row
from prorl_service import local
from prorl_service.inference.reference_engine.tiny import build_tiny_model
from tests import vllm_engine

ROOT = Path(__file__).parents[2]
VLLM = ROOT / ".venv-vllm/bin/python"
VLLM_OPTIONS = ("--enforce-eager", "--kv-cache-memory-bytes", str(2**28), "--enable-lora")
PUSHES = 4
"""Pushes of each kind; the first, which meets cold caches, is left out."""
RANK = 8
ADAPTER = f"vLLM, LoRA of rank {RANK}"
SHAPES = {"1 GB": (1024, 3072, 20), "4 GB": (2048, 6144, 20)}
"""Hidden size, inner size and layers, keyed by the size in fp32."""


def measure(quick: bool) -> Found:
    rows: list[Row] = []
    with TemporaryDirectory() as directory:
        for size, shape in list(SHAPES.items())[: 1 if quick else None]:
            model = _model(Path(directory) / size.replace(" ", ""), *shape)
            rows += _of_size(size, model)
    largest = {row["who"]: row for row in rows}
    share = largest[ADAPTER]["sent_mb"] / largest["vLLM"]["sent_mb"]
    headline = {
        "weights_gb_per_s": largest["vLLM"]["gb_per_s"],
        "adapter_bytes_share": round(share, 5),
    }
    return Found(rows, headline)


def _of_size(size: str, model: Path) -> Iterator[Row]:
    yield _row(size, "disk: bf16 written and synced", *disk(model))
    yield _row(size, "reference engine", *push(model, "reference"))
    yield _row(size, "vLLM", *push(model, "vllm"))
    yield _row(size, ADAPTER, *push(model, "vllm", rank=RANK))


def _row(size: str, who: str, seconds: float, sent: int) -> Row:
    return {
        "size": size,
        "who": who,
        "s": round(seconds, 3),
        "sent_mb": round(sent / 1e6, 1),
        "gb_per_s": round(sent / seconds / 1e9, 3),
    }


def push(model: Path, kind: str, *, rank: int = 0) -> tuple[float, int]:
    """Returns the median of seconds, and the bytes of the last push."""
    with TemporaryDirectory() as logs, _engine(kind, model, Path(logs)) as engine:
        arguments = [engine.url, str(model), str(PUSHES), str(rank), f"{logs}/service.log"]
        command = [sys.executable, "-m", "bench.vllm_training.push", *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    pushed = json.loads(done.stdout.splitlines()[-1])
    return median(pushed["seconds"][1:]), pushed["bytes"][-1]


def _engine(kind: str, model: Path, logs: Path) -> AbstractContextManager[local.LocalProcess]:
    options = ["--dtype", "bfloat16", "--max-model-len", "512"]
    if kind == "vllm":
        return vllm_engine.vllm(VLLM, model, log=logs / "vllm", options=[*options, *VLLM_OPTIONS])
    return local.engine(model, log=logs / "engine", options=options)


def disk(model: Path) -> tuple[float, int]:
    """Returns the seconds to write and sync what is sent, in one stream, and its bytes."""
    content = (model / "model.safetensors").read_bytes()
    seconds = []
    for number in range(PUSHES):
        path = model / f"copy-{number}"
        began = time.monotonic()
        with path.open("wb") as file:
            file.write(content)
            os.fsync(file.fileno())
        seconds.append(time.monotonic() - began)
        path.unlink()
    return median(seconds[1:]), len(content)


def _model(directory: Path, hidden: int, inner: int, layers: int) -> Path:
    """Makes a random Qwen3 in bf16, with the tokenizer of the tiny one."""
    build_tiny_model(directory, tie_word_embeddings=True)
    config = AutoConfig.from_pretrained(directory)
    config.hidden_size, config.intermediate_size = hidden, inner
    config.num_hidden_layers, config.num_attention_heads = layers, 16
    config.num_key_value_heads, config.head_dim = 8, hidden // 16
    config.layer_types = None
    config = type(config)(**config.to_diff_dict())
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(directory)
    return directory
