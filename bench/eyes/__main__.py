"""`python -m bench.eyes`: what looking at rollouts costs, and whether others read what leaves.

A whole run leaves bench/results/eyes.json; it takes about a quarter of an hour. Nothing else should
run meanwhile: the cost of the page is a ratio of processor times.
"""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import result
from bench.eyes import cost, formats, lists, pages
from prorl_service.cli.program import run

Row = dict[str, object]


def main(
    *,
    rollouts: int = 100_000,
    shelf_mb: float = 512,
    rounds: int = 6,
    only: Sequence[str] = (),
) -> None:
    """Measure the shelf, the page and the exports.

    Parameters
    ----------
    rollouts
        Rollouts on the shelf whose lists are measured.
    shelf_mb
        Limit of that shelf, in MiB.
    rounds
        Rounds of the load without and with an open page.
    only
        Parts to measure, without writing results: cost, pages, lists, formats.
    """
    parts: dict[str, Callable[[Path], list[Row]]] = {
        "cost": lambda directory: cost.measure(directory, rounds),
        "pages": pages.measure,
        "lists": lambda directory: lists.measure(directory, rollouts, shelf_mb),
        "formats": formats.measure,
    }
    measured: dict[str, list[Row]] = {}
    for name in only or parts:
        with tempfile.TemporaryDirectory() as directory:
            measured[name] = parts[name](Path(directory))
        for row in measured[name]:
            print("  ".join(f"{column} {value}" for column, value in row.items()), flush=True)
    if not only:
        rows = [row for some in measured.values() for row in some]
        result.write("eyes", rows, _headline(measured))


def _headline(measured: dict[str, list[Row]]) -> Row:
    size, *views = measured["pages"]
    disk, *calls = measured["lists"]
    atif, sft, spans = measured["formats"]
    return {
        "page_kb": size["transferred_kb"],
        "page_kb_uncompressed": size["kb"],
        "views": sum(bool(row["shows"]) for row in views),
        "console_errors": sum(int(str(row["console_errors"])) for row in views),
        "other_hosts": sum(int(str(row["other_hosts"])) for row in views),
        "cpu_ratio_with_page": measured["cost"][-1]["ratio"],
        "list_ms_at_100k": max(float(str(row["cpu_ms"])) for row in calls),
        "shelf_mb_at_100k": disk["mb"],
        "atif_valid": atif["documents"] == atif["valid_by_atif"] == atif["valid_by_harbor"],
        "sft_loads": sft["steps_trained"] == formats.SFT_STEPS,
        "spans_per_rollout": spans["spans_per_rollout"],
    }


if __name__ == "__main__":
    run(main)
