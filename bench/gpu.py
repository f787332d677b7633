"""The service and real vLLM on one GPU: `python -m bench.gpu [PART...]`.

`fp32`, `bf16`: the demo's training by TRL, with the trainer on the GPU in fp32 and vLLM in that
type. `reference`: the same with the reference engine, on the CPU. Needs vLLM's build for CUDA in
`.venv-vllm`. Processes may run parts at the same time.
"""

import subprocess
from functools import partial

import torch

from bench.frame import Found, run
from bench.vllm_training import training
from tests import vllm_engine
from tests.vllm_engine import PYTHON

ENGINES = {"reference": "reference engine", "fp32": "vLLM, fp32", "bf16": "vLLM, bf16"}
TRAINERS = ("GRPOTrainer", "GRPOTrainer, dynamic sampling")


def trained(name: str, quick: bool) -> Found:
    steps, engines = 2 if quick else 40, [ENGINES[name]]
    rows = training.measure((0,), steps, engines=engines, trainers=TRAINERS, use_cpu=False)
    figures = {
        f"{name}_after": min(one["after"] for one in rows),
        f"{name}_logprob_diff_max": max(one["logprob_diff_max"] for one in rows),
        f"{name}_versions_wrong": sum(one["versions_wrong"] for one in rows),
    }
    return Found(rows, figures)


def _on_gpu(name: str, quick: bool) -> Found | None:
    """Trains, and adds what it ran on."""
    if not torch.cuda.is_available():
        return None
    found = trained(name, quick)
    command = [str(PYTHON), "-c", vllm_engine.VLLM_VERSION]
    release = subprocess.check_output(command, text=True).strip()
    found.headline.update(gpu=torch.cuda.get_device_name(), torch=torch.__version__, vllm=release)
    return found


if __name__ == "__main__":
    run("gpu", {name: partial(_on_gpu, name) for name in ENGINES})
