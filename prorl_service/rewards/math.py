"""Scoring of mathematical answers with math-verify (https://github.com/huggingface/Math-Verify).

An answer is LaTeX and counts as a whole: it is not searched, because a search also finds numbers of
the question. `rewards.exact` compares numbers; docs/math_code_science.md says what else
math-verify takes to be equal, and where it errs. Comparing hostile LaTeX can take forever or fill
memory: call `score_math` through a `ScoringPool`.
"""

import re
from functools import lru_cache
from typing import Any, cast

MAX_ANSWER_CHARS = 4000
"""Maximum length of an answer. A longer one is wrong: the policy is repeating itself."""

PACKAGES = {"math_verify": "math"}
"""Module that scoring needs, and the extra that installs it."""

_TOKENS = re.compile(r"\\boxed\s*\{|\\.|[{}]", re.DOTALL)
_DELIMITERS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"))
_INTEGER = re.compile(r"\s*[+-]?[0-9]{1,100}\s*")


def boxed(text: str) -> str | None:
    """Returns the content of the last `\\boxed{...}`, the outermost of nested ones. O(len(text)).

    None if there is none, or if the last that was opened is not closed.
    """
    open_braces: list[int] = []
    """Start of a box's content; -1 for other braces."""
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
    """Returns 1.0 when `answer` equals `gold`, else 0.0. Both are LaTeX.

    Raises `ValueError` when `gold` itself cannot be read.
    """
    if len(answer) > MAX_ANSWER_CHARS:
        return 0.0
    if _INTEGER.fullmatch(answer) and _INTEGER.fullmatch(gold):
        return float(int(answer) == int(gold))
    # Imported late: sympy takes 60 MB, which only the scoring workers should pay.
    from math_verify import verify

    from prorl_service.rewards.exact import is_false

    expected, found = _parsed_gold(gold), _parsed(answer)
    if any(map(is_false, found)):
        return 0.0
    # Without its own time limits, which use SIGALRM: the pool ends a call that takes too long.
    equal = verify(expected, found, allow_set_relation_comp=True, timeout_seconds=None)
    return float(cast(bool, equal))


def is_expression(gold: str) -> bool:
    """Returns whether math-verify reads `gold` as more than text, which only equals the same text.

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
    """Returns the expression, where it is one, and its text in a normal form."""
    from math_verify import parse

    box = f"\\boxed{{{latex.strip().removeprefix('=')}}}"
    parsed = parse(box, _latex_only(), extraction_mode="first_match", parsing_timeout=None)
    return cast(list[Any], parsed)


@lru_cache(maxsize=1)
def _latex_only() -> list[Any]:
    """Returns a configuration that parses only the content of the box, as LaTeX."""
    from math_verify import LatexExtractionConfig

    from prorl_service.rewards.exact import mend_comparison
    from prorl_service.rewards.latex import mend_parser

    mend_parser()
    mend_comparison()
    return [LatexExtractionConfig(boxed_match_priority=0, try_extract_without_anchor=False)]
