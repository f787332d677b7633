"""Time of new weights from a trainer in fp32 to an engine in bf16, at 1 and 4 GB of fp32.

Next to it, in the same run: the code of an earlier commit, and the time that the disk takes to
write and sync the same bytes. The seconds of a push are the trainer's, from its tensors until the
engine serves with them.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from prorl_service import local
from prorl_service.inference.reference_engine.tiny import build_tiny_model

BEFORE = "9cb876a"
ROOT = Path(__file__).parents[2]
VLLM = ROOT / ".venv-vllm/bin/python"
VLLM_OPTIONS = ("--enforce-eager", "--kv-cache-memory-bytes", str(2**28), "--enable-lora")
PUSHES = 4
"""Pushes of each kind; the first, which meets cold caches, is left out."""
RANK = 8
NOW = "reference engine"
EARLIER = f"{BEFORE}, {NOW}"
ADAPTER = f"vLLM, LoRA of rank {RANK}"
SHAPES = {"1 GB": (1024, 3072, 20), "4 GB": (2048, 6144, 20)}
"""Hidden size, inner size and layers, keyed by the size in fp32."""

Row = dict[str, object]


def measure(*, quick: bool) -> list[Row]:
    rows: list[Row] = []
    with TemporaryDirectory() as directory, _earlier() as earlier:
        for size, shape in list(SHAPES.items())[: 1 if quick else None]:
            model = _model(Path(directory) / size.replace(" ", ""), *shape)
            rows += _of_size(size, model, earlier)
    return rows


def _of_size(size: str, model: Path, earlier: Path) -> Iterator[Row]:
    parameters = (model / "model.safetensors").stat().st_size // 2
    yield row(size, "disk: bf16 written and synced", parameters, *disk(model))
    yield row(size, EARLIER, parameters, *push(model, earlier, "reference"))
    yield row(size, NOW, parameters, *push(model, ROOT, "reference"))
    yield row(size, "vLLM", parameters, *push(model, ROOT, "vllm"))
    yield row(size, ADAPTER, parameters, *push(model, ROOT, "vllm", rank=RANK))


def row(size: str, who: str, parameters: int, seconds: float, sent: int) -> Row:
    return {
        "part": "weights",
        "size": size,
        "who": who,
        "s": round(seconds, 3),
        "sent_mb": round(sent / 1e6, 1),
        "gb_per_s": round(sent / seconds / 1e9, 3),
        "m_parameters_per_s": round(parameters / seconds / 1e6, 1),
    }


def push(
    model: Path, code: Path, kind: str, *, rank: int = 0, device: str = "cpu"
) -> tuple[float, int]:
    """Returns the median of seconds, and the bytes of the last push; trainer and service run
    `code`. `device`: the trainer's."""
    paths = os.pathsep.join([str(code), str(code / "plugins/trl")])
    script = str(Path(__file__).with_name("push.py"))
    with TemporaryDirectory() as logs, _engine(kind, model, Path(logs)) as engine:
        arguments = [engine.url, str(model), str(PUSHES), str(rank), f"{logs}/service.log", device]
        done = subprocess.run(
            [sys.executable, script, *arguments],
            cwd=code,
            env=os.environ | {"PYTHONPATH": paths},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    pushed = json.loads(done.stdout.splitlines()[-1])
    return median(pushed["seconds"][1:]), pushed["bytes"][-1]


def _engine(kind: str, model: Path, logs: Path) -> AbstractContextManager[local.LocalProcess]:
    options = ["--dtype", "bfloat16", "--max-model-len", "512"]
    if kind == "vllm":
        return local.vllm(VLLM, model, log=logs / "vllm", options=[*options, *VLLM_OPTIONS])
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


@contextmanager
def _earlier() -> Iterator[Path]:
    """Checks out the code of `BEFORE`."""
    with TemporaryDirectory() as directory:
        path = Path(directory) / "code"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(path), BEFORE], check=True)
        try:
            yield path
        finally:
            subprocess.run([*git, "remove", "--force", str(path)], check=True)
