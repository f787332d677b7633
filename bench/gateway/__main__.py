"""Measure all: `python -m bench.gateway`. Writes bench/results/gateway.json; ten minutes.

Learning with harnesses is measured by `bench.gateway_learning`, whose figures the headline repeats.
"""

import json

from bench import result
from bench.gateway import cost, first_request, harnesses, scenarios

LEARNT = ("pi_success_before", "pi_success_after", "mini_success_after")


def main() -> None:
    ran, played = harnesses.measure(), scenarios.measure()
    costs, first = cost.measure(), first_request.measure()
    ours, harness = costs
    learning = json.loads((result.RESULTS / "gateway_learning.json").read_text())["headline"]
    tokens = sum(int(str(row["tokens"])) for row in played)
    whole = sum(int(str(row["whole_tokens"])) for row in played)
    result.write(
        "gateway",
        [*ran, *played, *costs, *first],
        {
            "harnesses_run": sum(row["reward"] == 1.0 for row in ran),
            "scenarios": len(played),
            "scenarios_exact": sum(bool(row["is_exact"]) for row in played),
            "segments_over_oracle": sum(_over(row) for row in played),
            "tokens_vs_whole_renders": round(tokens / whole, 3),
            "cpu_ms_per_call_at_64": harness["cpu_ms_per_call"],
            "cpu_ms_per_turn_of_our_loop": ours["cpu_ms_per_call"],
            "first_request_ms": first[0]["first_ms"],
            "first_request_render_ms": first[0]["render_ms"],
            "first_request_holds_loop_ms": first[0]["longest_hold_ms"],
            **{name: learning[name] for name in LEARNT},
            "double_samples": int(str(harness["calls"])) - cost.expected_calls(),
        },
    )


def _over(row: dict[str, object]) -> int:
    return int(str(row["segments"])) - int(str(row["expected"]))


if __name__ == "__main__":
    main()
