"""The service with vLLM on one GPU: `python -m bench.gpu [PART...]`, six minutes on an H100.

`reference`: the demo's training, with the trainer on the GPU and the reference engine on the CPU.
`fp32`, `bf16`: the same with both on the GPU, and vLLM in that type. `weights`: a push of Qwen3-4B
(random weights) from a trainer in fp32 to vLLM in bf16, both on the GPU. `load`: rollouts of that
model through the service, and the same calls by a bare loop. Needs vLLM's own build in
`.venv-vllm`. Not run: the parts with vLLM; NCCL, which needs a GPU for each side.
"""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from bench import result
from bench.gpu import load, qwen3
from bench.vllm_training import training
from bench.vllm_training.weights import RANK, ROOT, disk, push, row

ENGINES = {
    "reference": "reference engine",
    "fp32": "vLLM, fp32 on a GPU",
    "bf16": "vLLM, bf16 on a GPU",
}
"""Engine of the demo's training, by part."""
TRAINERS = ("GRPOTrainer", "GRPOTrainer, dynamic sampling")
SIZE = "Qwen3-4B"


def trained(kind: str, engine: str, steps: int) -> result.Part:
    found = training.measure([0], steps, engines=[engine], trainers=TRAINERS, use_cpu=False)
    rows = [{name: value for name, value in one.items() if name != "part"} for one in found]
    figures = {
        f"after_{kind}": min(float(str(one["after"])) for one in rows),
        f"logprob_diff_max_{kind}": max(float(str(one["logprob_diff_max"])) for one in rows),
        f"versions_wrong_{kind}": sum(int(str(one["versions_wrong"])) for one in rows),
    }
    return rows, figures


def pushed(model: Path) -> result.Part:
    parameters = (model / qwen3.WEIGHTS).stat().st_size // 2
    found = {
        "disk: bf16 written and synced": disk(model),
        "vLLM": push(model, ROOT, "vllm", device="cuda"),
        f"vLLM, LoRA of rank {RANK}": push(model, ROOT, "vllm", rank=RANK, device="cuda"),
    }
    rows = []
    for who, (seconds, sent) in found.items():
        rows.append(row(SIZE, who, parameters, seconds, sent))
        del rows[-1]["part"]
    return rows, {"push_s": rows[1]["s"], "push_adapter_s": rows[2]["s"]}


def _here(part: Callable[[], result.Part]) -> result.Part:
    rows, figures = part()
    return rows, {**figures, "gpu": torch.cuda.get_device_name(), "torch": torch.__version__}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--steps", type=int, default=40, help="of training; default: %(default)s")
    options = parser.parse_args()
    with TemporaryDirectory(prefix="prorl-bench-") as directory:
        model = Path(directory) / "qwen3-4b"
        if {"weights", "load"} & set(options.parts or ["load"]):
            qwen3.write(model)
        parts = {
            **{
                kind: partial(_here, partial(trained, kind, engine, options.steps))
                for kind, engine in ENGINES.items()
            },
            "weights": partial(_here, partial(pushed, model)),
            "load": partial(_here, partial(load.measure, model)),
        }
        result.write_parts("gpu", parts, options.parts)


if __name__ == "__main__":
    main()
