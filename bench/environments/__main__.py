"""Harbor's tasks on our sandboxes. Half an hour.

`training`: a tiny policy learns from Harbor task directories. `starts`: a sandbox's start under
Harbor, by our environment and by Harbor's for Apptainer; needs `scripts/setup-harbor`.
"""

from bench import frame
from bench.environments import starts, training


def measured_starts(quick: bool) -> frame.Found:
    rows = starts.measured(1 if quick else starts.ROUNDS)
    warm = frame.find(rows, environment="ours", state="warm")
    return frame.Found(rows, {"sandbox_start_p50_ms": warm["p50_ms"]})


if __name__ == "__main__":
    frame.run("environments", {"training": training.measure, "starts": measured_starts})
