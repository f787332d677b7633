"""Training on a real vLLM, and weights at size: `python -m bench.vllm_training`.

A whole run takes about an hour, needs `scripts/setup-vllm`, and leaves
bench/results/vllm_training.json.
"""

import argparse
import json
from statistics import fmean
from typing import Any

from bench import result
from bench.vllm_training import training, weights
from tests.tokens.families import FAMILIES, chat_of

SEEDS = (0, 1, 2)
STEPS = 40
QUICK_STEPS = 3


def headline(rows: list[dict[str, Any]]) -> dict[str, object]:
    trained = [row for row in rows if row["part"] == "training"]
    on_vllm = [row for row in trained if row["engine"] == "vLLM"]

    def after(trainer: str) -> float:
        return round(fmean(row["after"] for row in on_vllm if row["trainer"] == trainer), 4)

    largest = {row["who"]: row for row in rows if row.get("size") == "4 GB"}
    on_largest, now, before = largest["vLLM"], largest[weights.NOW], largest[weights.EARLIER]
    return {
        "trl_sync_after": after("GRPOTrainer"),
        "trl_dynamic_after": after("GRPOTrainer, dynamic sampling"),
        "trl_async_after": after("AsyncGRPOTrainer"),
        "logprob_diff_max": max(row["logprob_diff_max"] for row in trained),
        "versions_wrong": sum(row["versions_wrong"] for row in trained),
        "weights_gb_per_s": on_largest["gb_per_s"],
        "weights_rate_vs_before": round(
            now["m_parameters_per_s"] / before["m_parameters_per_s"], 2
        ),
        "families": len(FAMILIES),
        "families_ok": sum(not chat_of(one).problem for one in FAMILIES),
        "adapter_bytes_share": round(
            largest[weights.ADAPTER]["sent_mb"] / on_largest["sent_mb"], 5
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed, 3 steps, as a check")
    parser.add_argument(
        "--only", choices=["training", "weights"], help="one part; the other's rows are kept"
    )
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if options.only != "weights":
        seeds, steps = (SEEDS[:1], QUICK_STEPS) if options.quick else (SEEDS, STEPS)
        rows += training.measure(seeds, steps)
    if options.only != "training":
        rows += weights.measure(quick=options.quick)
    if options.quick:
        for row in rows:
            print(row)
        return
    if options.only:
        kept = json.loads((result.RESULTS / "vllm_training.json").read_text())["rows"]
        rows += [row for row in kept if row["part"] != options.only]
        rows.sort(key=lambda row: row["part"])
    result.write("vllm_training", rows, headline(rows))


if __name__ == "__main__":
    main()
