"""Scoring of final answers to STEM questions: the letter of an option, or a short answer.

Only certain matches count; about the others a judge may be asked (rewards/judge/judge.py).
`score_choice` and `score_value` can take forever on hostile answers: call them through a
`ScoringPool`.
"""

import math
import re
import unicodedata
from collections.abc import Mapping

from prorl_service.rewards.math import boxed, score_math

RELATIVE_TOLERANCE = 1e-6
"""Largest relative difference of two equal numbers."""
_WRAPPED = re.compile(
    r"\\(?:boxed|text|mathrm|mathbf|textbf|mathit|rm|bf|operatorname)\s*\{([^{}]*)\}"
)
_SPACING = re.compile(r"\\[,;:! ]|\\q?quad\b|~|\\left\b|\\right\b|\\\(|\\\)|\\\[|\\\]|(?<!\\)\$")
_WORD = re.compile(r"[^\W\d_]{2,}")
_LABELLED = re.compile(r"\(?([A-Z])(?:\)\s*[:.]?|\s*[:.])\s*(.+)", re.DOTALL)
_INTRODUCED = re.compile(
    r"[(\[]*(?:option|answer|choice)(?:\s+is)?\s*[:.]?\s+(.+)", re.DOTALL | re.IGNORECASE
)
_MATHEMATICS = re.compile(r"[\\^_=+*/<>|]")
_NUMBER = re.compile(
    r"([+-]?)"
    r"(?:10\^\{?([+-]?\d+)\}?"  # 10^{-3}
    r"|(\d+(?:,\d{3})*(?:\.\d*)?|\.\d+)"  # 1,234.5
    r"(?:(?:e|(?:\\times|\\cdot|[*\u00d7\u00b7])10\^)\{?([+-]?\d+)\}?)?)",  # e-3, \times 10^{-3}
    re.IGNORECASE,
)


def score_choice(text: str, gold: str, options: Mapping[str, str], pattern: str | None) -> float:
    """Returns 1.0 when the reply `text` chooses the option `gold`, else 0.0."""
    return float(chosen_letter(text, options, pattern) == gold)


def chosen_letter(text: str, options: Mapping[str, str], pattern: str | None) -> str | None:
    """Returns the option in the last match of `pattern` (in its first group, if it has one), else
    the option in the last box. None if the box does not name exactly one option."""
    if pattern is not None:
        found = [match[match.re.groups and 1] for match in re.finditer(pattern, text)]
        letter = _letter(found[-1] or "", options) if found else None
        if letter is not None:
            return letter
    answer = boxed(text)
    return None if answer is None else _letter(answer, options)


def _letter(said: str, options: Mapping[str, str]) -> str | None:
    said = normal_text(said)
    alone = said.strip("()[] ").upper()
    if alone in options:
        return alone
    of_text = [letter for letter, text in options.items() if text and normal_text(text) == said]
    if of_text:
        return of_text[0] if len(of_text) == 1 else None
    if introduced := _INTRODUCED.fullmatch(said):
        return _letter(introduced[1], options)
    labelled = _LABELLED.fullmatch(said)
    if labelled is None or labelled[1] not in options:
        return None
    letter, text = labelled[1], normal_text(labelled[2])
    of_others = [other for other, words in options.items() if normal_text(words) == text]
    return letter if not of_others or letter in of_others else None


def normal_text(text: str) -> str:
    """Removes LaTeX that only sets type, redundant spaces, the article in front and the full stop
    at the end. Lower-cases ordinary words, but not `CO` and `pH`."""
    text = unicodedata.normalize("NFC", text)
    text = _SPACING.sub(" ", text)
    while (unwrapped := _WRAPPED.sub(r"\1", text)) != text:
        text = unwrapped
    text = " ".join(text.replace("\\dfrac", "\\frac").split()).rstrip(".").rstrip()
    text = _WORD.sub(lambda word: word[0].lower() if word[0][1:].islower() else word[0], text)
    return text.removeprefix("the ")


def score_value(answer: str, gold: str) -> float:
    """Returns 1.0 when `answer`, the content of a box, has the value of `gold`, else 0.0.

    math-verify is not asked about words, which it reads as products of letters ("on" is "no"), and
    units, which it leaves out.
    """
    theirs, ours = _quantity(answer), _quantity(gold)
    if theirs is not None and ours is not None and theirs[1] == ours[1]:
        return _close(theirs[0], ours[0])
    if is_words(gold) or not _units_agree(answer, gold):
        return 0.0
    theirs, ours = (_quantity(_WRAPPED.sub("", text)) for text in (answer, gold))
    if theirs is not None and ours is not None and not theirs[1] and not ours[1]:
        return _close(theirs[0], ours[0])
    try:
        return score_math(answer, gold)
    except ValueError:  # math-verify cannot read the gold answer
        return 0.0


def is_words(text: str) -> bool:
    """Returns whether it has adjacent letters and no mathematics: a word, a sequence."""
    bare = _SPACING.sub(" ", _WRAPPED.sub(" ", text))
    return not bare.strip() or bool(_WORD.search(bare) and not _MATHEMATICS.search(bare))


def _close(one: float, other: float) -> float:
    return float(math.isclose(one, other, rel_tol=RELATIVE_TOLERANCE))


def _units_agree(answer: str, gold: str) -> bool:
    """Returns whether the units are equal, where both texts name one."""
    theirs, ours = ("".join("".join(_WRAPPED.findall(text)).split()) for text in (answer, gold))
    return not (theirs and ours) or theirs == ours


def _quantity(text: str) -> tuple[float, str] | None:
    """Returns the number that `text` begins with, and the rest."""
    bare = "".join(normal_text(text).split())
    match = _NUMBER.match(bare)
    if match is None:
        return None
    sign, power, digits, exponent = match.groups()
    mantissa = "1" if digits is None else digits.replace(",", "")
    number = float(f"{sign}{mantissa}e{power or exponent or 0}")
    return (number, bare[match.end() :]) if math.isfinite(number) else None
