"""The result of converting a row of a data set."""

from dataclasses import dataclass

from recipes.swebench.rows import SweInstance


@dataclass(frozen=True, slots=True)
class Converted:
    """`left_out`: ids of tests that the row has and both lists lack."""

    instance: SweInstance
    left_out: tuple[str, ...] = ()
