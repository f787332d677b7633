"""verl's own scorers, in verl's environment, for batches of rows from standard input.

A line of JSON each way: `{"scorer": ..., "rows": [[answer, truth], ...]}`, then
`{"scores": [...], "took_s": ...}`. Calls are made from several threads, as verl's reward loop does.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

THREADS = 8


def scorers() -> dict[str, Callable[[str, Any], float]]:
    from verl.utils.reward_score import math_verify, prime_code

    return {
        "math_verify": math_verify.compute_score,
        "prime_code": lambda source, tests: prime_code.compute_score(
            source, tests, continuous=True
        )[0],
    }


def main() -> None:
    said = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what scorers print
    known = scorers()
    with ThreadPoolExecutor(THREADS) as threads:
        for line in sys.stdin:
            request = json.loads(line)
            started = time.perf_counter()
            answers, truths = zip(*request["rows"], strict=True)
            found = threads.map(known[request["scorer"]], answers, truths)
            scores = [float(score == 1) for score in found]  # prime_code gives shares of cases
            took_s = time.perf_counter() - started
            print(json.dumps({"scores": scores, "took_s": took_s}), file=said, flush=True)


if __name__ == "__main__":
    main()
