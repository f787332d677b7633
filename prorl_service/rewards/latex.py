"""Fixes for the parser below math-verify, which speed it up without changing what it reads.

Only for processes of the scoring pool, because they change classes of another package.
"""

from typing import Any

from antlr4.atn.PredictionMode import PredictionMode
from latex2sympy2_extended.antlr_parser import PSParser


def mend_parser() -> None:
    """Changes the parser. Call it once per process."""
    # Needed to read a percentage; missing in the parser for antlr 4.9.3, the version that Hydra
    # needs.
    if not hasattr(PSParser.AtomContext, "FUNC_GAMMA"):
        PSParser.AtomContext.FUNC_GAMMA = lambda _: None
    PSParser.math = _in_two_stages(PSParser.math)


def _in_two_stages(parse: Any) -> Any:
    """Tries antlr's quick mode first, which takes a fifth of the time.

    antlr advises it: what the quick mode reads without an error, the full mode reads alike.
    """

    def math(parser: Any) -> Any:
        parser._interp.predictionMode = PredictionMode.SLL
        try:
            return parse(parser)
        except Exception:  # the error listener can raise anything
            parser.reset()
            parser._interp.predictionMode = PredictionMode.LL
            return parse(parser)

    return math
