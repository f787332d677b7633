"""What a front costs, and many services behind one. Half an hour; nothing else may run meanwhile.

`costs`: CPU of the front for a rollout. `idle`: a front over 256 services at rest. `services`: busy
slots of 1 to 64 services, processes of this machine; a row says where the machine was busy.
`storm`: how soon work goes on elsewhere on a Ray cluster whose nodes and processes die.
"""

import json
import os
import subprocess
import tempfile

from bench import frame
from bench.nodes import costs, services


def storm(_: bool) -> frame.Found:
    """Runs `tests/ray/test_storm.py`, which takes minutes, and reads its report."""
    with tempfile.NamedTemporaryFile("r", suffix=".json") as report:
        environment = {**os.environ, "PRORL_TEST_REPORT": report.name}
        command = ["scripts/test-ray", "tests/ray/test_storm.py"]
        subprocess.run(command, env=environment, check=True)
        found = json.load(report)
    rows = [
        {"event": kind.replace("_", " "), "seconds": seconds, "most_s": max(seconds)}
        for kind, some in found["lost"].items()
        for seconds in [[round(one, 1) for one in some]]
    ]
    headline = {
        "ray_kills": sum(len(row["seconds"]) for row in rows),
        "ray_rollouts": found["rollouts"],
        "ray_recovery_s_max": max(row["most_s"] for row in rows),
    }
    return frame.Found(rows, headline)


if __name__ == "__main__":
    parts: dict[str, frame.Part] = {
        "costs": costs.costs,
        "idle": costs.idle,
        "services": services.measure,
        "storm": storm,
    }
    frame.run("scale", parts)
