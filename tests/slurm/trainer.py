"""Stand-in for a trainer: submits groups of rollouts, waits for them, writes their states, and
after how many turns each was resumed.

python -m tests.slurm.trainer GROUPS SIZE SLEEP_S RESULTS
"""

import json
import os
import sys
from pathlib import Path

from prorl_service.client import RolloutClient
from tests.faults.processes import WAIT_S, group, ids_of


def main(count: int, n: int, sleep_s: float, results: Path) -> None:
    groups = [group(f"g{i}", n=n, turns=2, sleep=sleep_s) for i in range(count)]
    with RolloutClient(os.environ["PRORL_URL"]) as client:
        client.submit(groups)
        ended = client.wait(ids_of(groups), WAIT_S)
    rows = [[one.rollout_id, one.state, [at.turn for at in one.resumed]] for one in ended]
    results.write_text(json.dumps(rows))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4]))
