"""Scores a mathematical answer with math-verify (https://github.com/huggingface/Math-Verify).

Parsing hostile LaTeX can take for ever or fill memory: call `score_math` through a `ScoringPool`.
"""

from typing import cast


def score_math(answer: str, gold: str) -> float:
    """1.0 when `answer` (free text; a boxed or the last expression counts) equals `gold`, else 0.0.

    Raises `ValueError` when `gold` itself cannot be read.
    """
    # Imported late: sympy costs 60 MB, which only the scoring workers shall pay.
    from math_verify import parse, verify

    # No time limits of its own: they use SIGALRM, and the pool kills what takes too long.
    expected = parse(f"\\boxed{{{gold}}}", parsing_timeout=None)
    if not expected:
        raise ValueError(f"the gold answer {gold!r} is not an expression math-verify can read")
    found = parse(answer, parsing_timeout=None)
    return float(cast(bool, verify(expected, found, timeout_seconds=None)))
