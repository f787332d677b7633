"""Training on a real vLLM, and weights at size. An hour; needs `scripts/setup-vllm`.

`training`: the demo's, by each of TRL's trainers, on vLLM and on the reference engine. `weights`:
new ones, from a trainer in fp32 to an engine in bf16. `bench.gpu` trains on a GPU.
"""

from bench import frame
from bench.vllm_training import training, weights

SEEDS, STEPS, QUICK_STEPS = (0, 1, 2), 40, 2


def trained(quick: bool) -> frame.Found:
    seeds, steps = (SEEDS[:1], QUICK_STEPS) if quick else (SEEDS, STEPS)
    rows = training.measure(seeds, steps, engines=training.ENGINES)
    headline = {
        "logprob_diff_max": max(row["logprob_diff_max"] for row in rows),
        "versions_wrong": sum(row["versions_wrong"] for row in rows),
    }
    return frame.Found(rows, headline)


if __name__ == "__main__":
    frame.run("vllm_training", {"training": trained, "weights": weights.measure})
