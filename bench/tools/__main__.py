"""Measure all parts, or those named: `python -m bench.tools [--only bash,ipython] [--quick]`.

Only a whole run leaves bench/results/tools.json and tools.png; it takes about ten minutes.
"""

import argparse
import os
import time

import uvloop

from bench import result
from bench.plots.drawing import redraw
from bench.tools import bash, ipython, many, orphans, sockets, starts
from bench.tools.headline import headline
from bench.tools.timing import Effort, Row

# Orphans first: memory freed by other parts would hide the service's growth.
PARTS = {module.PART: module.measure for module in (orphans, bash, ipython, sockets, starts, many)}
FULL = Effort(
    rounds=12,
    turn_actions=40,
    turn_s=0.15,
    start_rounds={1: 12, 16: 3, 64: 2},
    crowd_s=5.0,
    cycles=1000,
)
QUICK = Effort(
    rounds=2, turn_actions=20, turn_s=0.05, start_rounds={1: 2, 16: 1}, crowd_s=1.0, cycles=60
)


async def measure(parts: list[str], effort: Effort) -> list[Row]:
    rows = []
    for part in parts:
        started = time.monotonic()
        print(f"{part} (load {os.getloadavg()[0]:.1f})", flush=True)
        rows += await PARTS[part](effort)
        print(f"{part} took {time.monotonic() - started:.0f} s", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    parser.add_argument("--quick", action="store_true", help="few repetitions, as a check")
    options = parser.parse_args()
    parts = options.only.split(",")
    # The event loop of the service.
    rows = uvloop.run(measure(parts, QUICK if options.quick else FULL))
    if parts == list(PARTS) and not options.quick:
        result.write("tools", rows, headline(rows))
        redraw("tools")


if __name__ == "__main__":
    main()
