"""Stands in for sgl_kernel: SGLang names its kernels everywhere, and calls none on a CPU that has
no AMX, with its attention and sampling in PyTorch."""

from typing import Any

from absent import Finder

from sgl_kernel.pinned import leave_unpinned

__version__ = "0.4.10"


class Kernel:
    """Kernel, or a part of one. Stands in annotations; a call fails."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: object, **kwargs: object) -> Any:
        raise NotImplementedError(f"sgl_kernel has no CPU build on PyPI: {self._name}")

    def __getattr__(self, name: str) -> "Kernel":
        if name.startswith("__"):
            raise AttributeError(name)
        return Kernel(f"{self._name}.{name}")

    def __or__(self, other: object) -> type:
        return object

    __ror__ = __or__


def __getattr__(name: str) -> Kernel:
    if name.startswith("__"):
        raise AttributeError(name)
    return Kernel(name)


Finder(__name__, Kernel)
leave_unpinned()
