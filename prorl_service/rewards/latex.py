"""Mends and speeds up the parser below math-verify, without changing what it reads.

For the processes of the scoring pool: it changes classes of another package.
"""

from typing import Any

from antlr4.atn.PredictionMode import PredictionMode
from latex2sympy2_extended.antlr_parser import PSParser


def mend_parser() -> None:
    """Once in a process."""
    # Asked for before a percentage is read; the parser for antlr 4.9.3, which is the version that
    # Hydra needs, does not have it.
    if not hasattr(PSParser.AtomContext, "FUNC_GAMMA"):
        PSParser.AtomContext.FUNC_GAMMA = lambda _: None
    PSParser.math = _in_two_stages(PSParser.math)


def _in_two_stages(parse: Any) -> Any:
    """antlr's own advice: what its quick mode reads without an error, its full mode reads alike.

    A fifth of the time.
    """

    def math(parser: Any) -> Any:
        parser._interp.predictionMode = PredictionMode.SLL
        try:
            return parse(parser)
        except Exception:  # whatever the listener of errors raises
            parser.reset()
            parser._interp.predictionMode = PredictionMode.LL
            return parse(parser)

    return math
