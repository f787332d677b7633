"""Stands in for torchvision, which transformers imports and text does not need."""

from absent import Finder

__version__ = "0.28.0"
MODES = ("NEAREST", "NEAREST_EXACT", "BILINEAR", "BICUBIC", "BOX", "HAMMING", "LANCZOS")
"""Names of `InterpolationMode`, which transformers reads when it is imported."""


def _stand_in(name: str) -> type:
    members = {mode: mode.lower() for mode in MODES} if name == "InterpolationMode" else {}
    return type(name, (), members)


Finder(__name__, _stand_in)
