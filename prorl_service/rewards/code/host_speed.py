"""Speed of this host, so that CPU time limits mean the same program everywhere.

Measured in CPU time, which hardly depends on other load. The speed of an image's Python is not
measured.
"""

import time

REFERENCE_S = 0.025
"""CPU time of `_work` with Python 3.11 on the machine of bench/results/rewards.json."""

TRIES = 3


def slowness() -> float:
    """Returns how many times as long as the reference this host takes."""
    return min(_took_s() for _ in range(TRIES)) / REFERENCE_S


def _took_s() -> float:
    started = time.process_time()
    _work()
    return time.process_time() - started


def _work() -> int:
    """Does what solutions of programming problems do: integers, lists, dictionaries and text."""
    sieve = [True] * 200_000
    for number in range(2, 450):
        if sieve[number]:
            for multiple in range(number * number, len(sieve), number):
                sieve[multiple] = False
    counts: dict[str, int] = {}
    for number, is_prime in enumerate(sieve):
        if is_prime:
            for digit in str(number):
                counts[digit] = counts.get(digit, 0) + 1
    return sum(counts.values())
