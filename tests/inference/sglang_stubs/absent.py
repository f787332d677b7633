"""Packages that are missing: their names import, and what is imported does nothing or fails.

Two of SGLang's requirements exist as CUDA builds only. It imports them, and calls neither where it
serves text from a CPU.
"""

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Module(ModuleType):
    """Module below a missing package, with every name."""

    __path__: list[str] = []  # noqa: RUF012 - as of every package

    def __init__(self, name: str, stand_in: Callable[[str], object]) -> None:
        super().__init__(name)
        self._stand_in = stand_in

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._stand_in(name)


class Finder:
    """Finds every module below `package`; `stand_in` returns what stands for a name in it."""

    def __init__(self, package: str, stand_in: Callable[[str], object]) -> None:
        self._prefix = f"{package}."
        self._stand_in = stand_in
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if not name.startswith(self._prefix):
            return None
        return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name, self._stand_in)

    def exec_module(self, module: ModuleType) -> None:
        """Does nothing: the module has no text."""
