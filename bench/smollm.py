"""A pretrained language model of 135 million parameters learns the demo's tasks on two cores.

`reference`: what `make demo-lm` does. `vllm`: the same training, sampled by vLLM on CPU (first
`scripts/setup-vllm`). Runs in outputs/smollm are not repeated. Each takes half an hour and more.
"""

import os
from pathlib import Path
from typing import Any

from bench import frame
from bench.demo import summary
from recipes.demo.policies import CONTEXT, WARM_STARTS
from recipes.demo.report import smooth
from recipes.demo.warm_start import warm_started
from tests import vllm_engine

OUTPUT = Path("outputs/smollm")
PARAMETERS_M = 134.5
RISE = 0.3
"""Success above that before training that counts as a rise."""
OPTIONS = ("--policy", "smollm2")
VLLM = (
    *("--dtype", "float32", "--enforce-eager", "--no-enable-chunked-prefill"),
    *("--max-model-len", str(CONTEXT), "--block-size", "32"),
    *("--kv-cache-memory-bytes", str(2**31)),
)


def found(engine: str, made: dict[str, Any]) -> frame.Found:
    figures, curve = made["headline"], [one["success"] for one in made["curve"]]
    step_s = 60 * figures["train_minutes"] / len(curve)
    goal = figures["heldout_success_before"] + RISE
    rise = next((step for step, one in enumerate(smooth(curve), 1) if one >= goal), None)
    row = {
        "engine": engine,
        "before": figures["heldout_success_before"],
        "after": figures["heldout_success_after"],
        "logprob_diff_max": figures["logprob_diff_max"],
        "steps": len(curve),
        "step_s": round(step_s, 1),
        "minutes_to_rise": None if rise is None else round(rise * step_s / 60, 1),
        "peak_memory_mb": made["peak_memory_mb"],
    }
    headline = {
        "parameters_m": PARAMETERS_M,
        "success_before": row["before"],
        f"success_after_trl_{engine}": row["after"],
        f"logprob_diff_max_{engine}": row["logprob_diff_max"],
        f"step_s_{engine}": row["step_s"],
        f"minutes_to_rise_{engine}": row["minutes_to_rise"],
    }
    return frame.Found([row], headline, {engine: curve})


def reference(quick: bool) -> frame.Found:
    _use_all_cores()
    output, few = (OUTPUT / "quick", ("--steps", "1")) if quick else (OUTPUT / "reference", ())
    return found("reference", summary(output, *OPTIONS, *few))


def vllm(quick: bool) -> frame.Found | None:
    if not vllm_engine.PYTHON.exists():
        return None
    _use_all_cores()
    output, few = (OUTPUT / "quick-vllm", ("--steps", "1")) if quick else (OUTPUT / "vllm", ())
    model = warm_started(output / "cache", WARM_STARTS["smollm2"])
    log = output / "vllm.log"
    with vllm_engine.vllm(vllm_engine.PYTHON, model, log=log, options=VLLM) as engine:
        return found("vllm", summary(output, *OPTIONS, *few, "--engine", engine.url))


def _use_all_cores() -> None:
    """Trainer and engine take turns."""
    os.environ["OMP_NUM_THREADS"] = str(os.cpu_count())


if __name__ == "__main__":
    frame.run("smollm", {"reference": reference, "vllm": vllm})
