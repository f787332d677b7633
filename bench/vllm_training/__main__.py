"""Training on a real vLLM, and weights at size. An hour; needs `scripts/setup-vllm`.

`training`: the demo's, by each of TRL's trainers, on vLLM and on the reference engine. `weights`:
new ones, from a trainer in fp32 to an engine in bf16. `gpu`: training with a GPU; it needs vLLM's
own build in `.venv-vllm`, and only its rows of the reference engine have been run.
"""

from statistics import fmean

import torch

from bench import frame
from bench.vllm_training import training, weights

SEEDS, STEPS, QUICK_STEPS = (0, 1, 2), 40, 2
ON_GPU = ("reference engine", "vLLM, fp32 on a GPU", "vLLM, bf16 on a GPU")


def trained(quick: bool) -> frame.Found:
    seeds, steps = (SEEDS[:1], QUICK_STEPS) if quick else (SEEDS, STEPS)
    rows = training.measure(seeds, steps, engines=training.ENGINES)
    on_vllm = [row for row in rows if row["engine"] == "vLLM"]

    def after(trainer: str) -> float:
        return round(fmean(row["after"] for row in on_vllm if row["trainer"] == trainer), 4)

    headline = {
        "trl_sync_after": after("GRPOTrainer"),
        "trl_dynamic_after": after("GRPOTrainer, dynamic sampling"),
        "trl_async_after": after("AsyncGRPOTrainer"),
        "logprob_diff_max": max(row["logprob_diff_max"] for row in rows),
        "versions_wrong": sum(row["versions_wrong"] for row in rows),
    }
    return frame.Found(rows, headline)


def on_gpu(quick: bool) -> frame.Found | None:
    if not torch.cuda.is_available():
        return None
    engines, steps = (ON_GPU[:1], QUICK_STEPS) if quick else (ON_GPU, STEPS)
    trainers = ("GRPOTrainer", "GRPOTrainer, dynamic sampling")
    rows = training.measure((0,), steps, engines=engines, trainers=trainers, use_cpu=False)
    return frame.Found(rows, {"gpu_after": min(row["after"] for row in rows)})


if __name__ == "__main__":
    parts: dict[str, frame.Part] = {"training": trained, "weights": weights.measure, "gpu": on_gpu}
    frame.run("vllm_training", parts)
