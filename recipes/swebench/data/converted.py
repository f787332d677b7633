"""What a row of a data set becomes."""

from dataclasses import dataclass

from recipes.swebench.rows import SweInstance


@dataclass(frozen=True, slots=True)
class Converted:
    """`left_out`: ids of tests that are in neither list though the row has them."""

    instance: SweInstance
    left_out: tuple[str, ...] = ()
