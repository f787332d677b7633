"""A pretrained language model of 135 million parameters learns the demo's tasks on two cores.

`reference`: what `make demo-lm` does. `vllm`: the same, sampled by vLLM on CPU (first
`scripts/setup-vllm`). `verl`: the same by VeRL's trainer (first `scripts/setup-verl`). `harness`:
with an unmodified pi as the agent. `recipe`: word problems, by the recipe's commands. `text`: by
tokens and by text, on three seeds. Runs in outputs/smollm are not repeated. Each takes half an
hour, those of `text` one.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from bench import frame
from bench.demo import summary
from bench.smollm.text_loop import LOOPS, learned
from recipes.common.training.trl import newest_checkpoint
from recipes.demo.policies import CONFIGS
from recipes.demo.report import smooth
from recipes.demo.tasks import CONTEXT
from recipes.demo.warm_start import WARM_STARTS, warm_started
from tests import vllm_engine

OUTPUT = Path("outputs/smollm")
VERL_RUN = "bench.verl.other_policies"
PARAMETERS_M = 134.5
RISE = 0.3
"""Success above that before training that counts as a rise."""
SEEDS = (0, 1, 2)
TEXT_STEPS = 8
OPTIONS = ("--policy", "smollm2")
RECIPE = ("task=math", "model=smollm2")
HELDOUT = "offline_math_heldout"
VLLM = (
    *("--dtype", "float32", "--enforce-eager", "--no-enable-chunked-prefill"),
    *("--max-model-len", str(CONTEXT), "--block-size", "32"),
    *("--kv-cache-memory-bytes", str(2**31)),
)


def row(name: str, made: dict[str, Any]) -> frame.Row:
    figures, curve = made["headline"], success_of(made)
    step_s = 60 * figures["train_minutes"] / len(curve)
    return {
        "name": name,
        "before": figures["heldout_success_before"],
        "after": figures["heldout_success_after"],
        "logprob_diff_max": figures["logprob_diff_max"],
        "steps": len(curve),
        "step_s": round(step_s, 1),
        "minutes_to_rise": minutes_to_rise(figures["heldout_success_before"], curve, step_s),
        "sampled_tokens_per_s": figures["sampled_tokens_per_s"],
        **{f"{process}_mb": size for process, size in made["peak_memory_mb"].items()},
    }


def success_of(made: dict[str, Any]) -> list[float]:
    return [one["success"] for one in made["curve"]]


def minutes_to_rise(before: float, curve: Sequence[float], step_s: float) -> float | None:
    steps = (step for step, one in enumerate(smooth(curve), 1) if one >= before + RISE)
    step = next(steps, None)
    return None if step is None else round(step * step_s / 60, 1)


def reference(quick: bool) -> frame.Found:
    made = _demo("reference", quick)
    one = row("reference engine", made)
    headline = {
        "parameters_m": PARAMETERS_M,
        "success_before": one["before"],
        "success_after_trl_reference": one["after"],
        "logprob_diff_max": one["logprob_diff_max"],
        "step_s": one["step_s"],
        "minutes_to_rise": one["minutes_to_rise"],
        "engine_tokens_per_s": one["sampled_tokens_per_s"],
    }
    return frame.Found([one], headline, {"reference": [success_of(made)]})


def vllm(quick: bool) -> frame.Found | None:
    if not vllm_engine.PYTHON.exists():
        return None
    _use_all_cores()
    output = _output("vllm", quick)
    model = warm_started(output / "cache", WARM_STARTS["smollm2"])
    log = output / "vllm.log"
    with vllm_engine.vllm(vllm_engine.PYTHON, model, log=log, options=VLLM) as engine:
        made = _demo("vllm", quick, "--engine", engine.url)
    one = row("vLLM", made)
    headline = {
        "success_after_trl_vllm": one["after"],
        "vllm_logprob_diff_max": one["logprob_diff_max"],
        "vllm_tokens_per_s": one["sampled_tokens_per_s"],
    }
    return frame.Found([one], headline, {"vllm": [success_of(made)]})


def harness(quick: bool) -> frame.Found:
    made = _demo("harness", quick, "--harness", "pi")
    one = row("pi", made)
    headline = {
        "success_before_harness": one["before"],
        "success_after_harness": one["after"],
        "harness_logprob_diff_max": one["logprob_diff_max"],
    }
    return frame.Found([one], headline, {"harness": [success_of(made)]})


def verl(quick: bool) -> frame.Found | None:
    python = frame.environment("verl")
    if python is None:
        return None
    output = _output("verl", quick)
    file = output / "summary.json"
    if not file.exists():
        steps = 1 if quick else CONFIGS["smollm2"].steps
        frame.in_environment(python, "verl", VERL_RUN, "smollm2", output, steps, 0)
    made = json.loads(file.read_text())
    before, after = made["heldout"]
    one = {
        "name": "VeRL",
        "before": before,
        "after": after,
        "probs_diff_max": made["probs_diff_max"],
        "steps": len(made["success"]),
        "step_s": round(fmean(made["step_s"]), 1),
    }
    headline = {"success_after_verl": after, "verl_probs_diff_max": one["probs_diff_max"]}
    return frame.Found([one], headline, {"verl": [made["success"]]})


def recipe(quick: bool) -> frame.Found:
    _use_all_cores()
    output = OUTPUT / ("quick-recipe" if quick else "recipe")
    _command("prepare", "--dataset", "offline_math", "--output", "outputs/data/offline_math")
    _command("prepare", "--dataset", HELDOUT, "--output", f"outputs/data/{HELDOUT}")
    before = _score(output / "before", quick)
    few = ("steps=1", "save_every_steps=1") if quick else ()
    _command("train", *RECIPE, "trainer=trl", f"output={output / 'train'}", *few)
    policy = (f"model.path={output / 'train/model'}", "model.warm_start=null")
    after = _score(output / "after", quick, *policy)
    checkpoint = newest_checkpoint(output / "train/checkpoints")
    assert checkpoint is not None
    state = json.loads(Path(checkpoint, "trainer_state.json").read_text())
    log = [one for one in state["log_history"] if "step_time" in one]
    lines = (output / "train/progress.jsonl").read_text().splitlines()
    headline = {
        "recipe_success_before": before,
        "recipe_success_after": after,
        "recipe_steps": len(lines),
        "recipe_step_s": round(fmean(one["step_time"] for one in log), 1),
        "recipe_step_s_max": round(max(one["step_time"] for one in log), 1),
    }
    curve = [json.loads(line)["mean_reward"] for line in lines]
    return frame.Found([headline], headline, {"recipe": [curve]})


def _score(output: Path, quick: bool, *overrides: str) -> float:
    """Returns the success on held-out problems."""
    ids = (
        json.loads(line)["problem_id"]
        for line in Path(f"outputs/data/{HELDOUT}/rows.jsonl").read_text().splitlines()
    )
    some = (f"data.only=[{','.join(islice(ids, 4))}]",) if quick else ()
    own = (f"data={HELDOUT}", f"output={output}", "seeds=1", "pass_at_k=[]")
    _command("evaluate", *RECIPE, *own, *some, *overrides)
    share: float = json.loads((output / "score.json").read_text())["score"]["pass_at_1"]
    return round(share, 3)


def _command(name: str, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", f"recipes.math_code.{name}", *arguments], check=True)


def text(quick: bool) -> frame.Found:
    """Compares training by tokens with training by text, in smaller steps than the demo's."""
    _use_all_cores()
    output = _output("text", quick)
    config = replace(CONFIGS["smollm2"], steps=1 if quick else TEXT_STEPS, groups_per_step=4)
    runs = {
        (loop, seed): learned(output, loop, replace(config, seed=seed))
        for seed in (SEEDS[:1] if quick else SEEDS)
        for loop in LOOPS
    }
    rows = [
        {"loop": loop, "seed": seed, **{key: one[key] for key in one if key != "success"}}
        for (loop, seed), one in runs.items()
    ]
    by_text = [one for one in rows if one["loop"] == "text"]
    changed, turns = (sum(one[key] for one in by_text) for key in ("changed_turns", "turns"))
    headline = {
        "retokenised_share_of_turns": round(changed / turns, 5),
        "retokenised_logprob_diff": max(one["logprob_diff_max"] for one in by_text),
        **{
            f"{loop}_loop_success_after": round(
                fmean(one["after"] for one in rows if one["loop"] == loop), 3
            )
            for loop in LOOPS
        },
    }
    series = {
        name: [one["success"] for (loop, _), one in runs.items() if loop == name] for name in LOOPS
    }
    return frame.Found(rows, headline, series)


def _demo(name: str, quick: bool, *options: str) -> dict[str, Any]:
    _use_all_cores()
    few = ("--steps", "1") if quick else ()
    return summary(_output(name, quick), *OPTIONS, *options, *few)


def _output(name: str, quick: bool) -> Path:
    """Returns the directory of a run. All share the models that they begin with."""
    directory = OUTPUT / (f"quick-{name}" if quick else name)
    (OUTPUT / "cache").mkdir(parents=True, exist_ok=True)
    directory.mkdir(exist_ok=True)
    if not (cache := directory / "cache").exists():
        cache.symlink_to("../cache")
    return directory


def _use_all_cores() -> None:
    """Trainer and engine take turns."""
    cores = os.cpu_count() or 1
    os.environ["OMP_NUM_THREADS"] = str(cores)
    torch.set_num_threads(cores)


if __name__ == "__main__":
    parts = (reference, vllm, verl, harness, recipe, text)
    frame.run("smollm", {part.__name__: part for part in parts})
