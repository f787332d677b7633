"""Scores a mathematical answer with math-verify (https://github.com/huggingface/Math-Verify).

An answer is LaTeX and counts as a whole: nothing is searched for in it, because a search finds the
numbers of the question too. What math-verify takes to be equal is in docs/rewards.md, with where it
errs. Comparing hostile LaTeX can take for ever or fill memory: call `score_math` through a
`ScoringPool`.
"""

import re
from functools import lru_cache
from typing import Any, cast

MAX_ANSWER_CHARS = 4000
"""A longer one is wrong: nobody's answer, but what a policy that repeats itself writes."""

_TOKENS = re.compile(r"\\boxed\s*\{|\\.|[{}]", re.DOTALL)
_DELIMITERS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"))
_INTEGER = re.compile(r"\s*[+-]?[0-9]{1,100}\s*")


def boxed(text: str) -> str | None:
    """What is in the last `\\boxed{...}`, of nested ones the outermost. O(len(text)).

    None if there is none, or if the last that was opened is not closed.
    """
    open_braces: list[int] = []
    """For a box where its content begins, else -1."""
    start = end = -1
    for token in _TOKENS.finditer(text):
        if token[0].startswith("\\boxed"):
            open_braces.append(token.end())
        elif token[0] == "{":
            open_braces.append(-1)
        elif token[0] == "}" and open_braces and (opened := open_braces.pop()) >= 0:
            start, end = opened, token.start()
    if end < 0 or any(opened > end for opened in open_braces):
        return None
    return text[start:end].strip()


def score_math(answer: str, gold: str) -> float:
    """1.0 when `answer` equals `gold`, else 0.0. Both are LaTeX.

    Raises `ValueError` when `gold` itself cannot be read.
    """
    if len(answer) > MAX_ANSWER_CHARS:
        return 0.0
    if _INTEGER.fullmatch(answer) and _INTEGER.fullmatch(gold):
        return float(int(answer) == int(gold))
    # Imported late: sympy costs 60 MB, which only the scoring workers shall pay.
    from math_verify import verify

    expected = _parsed_gold(gold)
    # No time limits of its own: they use SIGALRM, and the pool ends what takes too long.
    equal = verify(expected, _parsed(answer), allow_set_relation_comp=True, timeout_seconds=None)
    return float(cast(bool, equal))


def is_expression(gold: str) -> bool:
    """Whether math-verify reads more than a text in it, to which only the same text is equal.

    Raises `ValueError` when it reads nothing.
    """
    return any(not isinstance(read, str) for read in _parsed_gold(gold))


@lru_cache(maxsize=128)  # the answers of a group come one after the other
def _parsed_gold(gold: str) -> list[Any]:
    latex = gold.strip()
    for start, end in _DELIMITERS:
        if latex.startswith(start) and latex.endswith(end) and len(latex) > len(start + end):
            latex = latex[len(start) : -len(end)]
            break
    if parsed := _parsed(latex):
        return parsed
    raise ValueError(f"the gold answer {gold!r} is not an expression math-verify can read")


def _parsed(latex: str) -> list[Any]:
    """The expression, where it is one, and its text in a normal form."""
    from math_verify import parse

    box = f"\\boxed{{{latex}}}"
    parsed = parse(box, _latex_only(), extraction_mode="first_match", parsing_timeout=None)
    return cast(list[Any], parsed)


@lru_cache(maxsize=1)
def _latex_only() -> list[Any]:
    """How to parse: what is in the box, as LaTeX, and nothing else."""
    from math_verify import LatexExtractionConfig

    from prorl_service.rewards.latex import mend_parser

    mend_parser()
    return [LatexExtractionConfig(boxed_match_priority=0, try_extract_without_anchor=False)]
