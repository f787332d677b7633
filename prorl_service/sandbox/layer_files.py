"""Layers of sandboxes on disk, for rollouts that continue in a later process.

A file is complete or not there, and its name ends with its checksum. Blocking: call it in a thread.
"""

import os
import shutil
import uuid
from collections.abc import Collection
from pathlib import Path

from prorl_service.sandbox.layers import Layer

_UNFINISHED = ".unfinished"


class LayerFiles:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def save(self, layer: Layer) -> str:
        """Returns the name of a new file. Raises `OSError`."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = f"{uuid.uuid4().hex}-{layer.checksum:08x}"
        unfinished = self._directory / f"{name}{_UNFINISHED}"
        try:
            with unfinished.open("xb") as file:
                layer.write_to(file)
                file.flush()
                os.fsync(file.fileno())
            unfinished.rename(self._directory / name)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        return name

    def path(self, name: str) -> Path:
        return self._directory / name

    def adopt(self, path: Path, known_as: str) -> str:
        """Takes a file of another service over, where it is `known_as`. Returns its name here.
        Raises `OSError`."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = f"{uuid.uuid4().hex}-{known_as.rpartition('-')[2]}"
        shutil.move(path, self._directory / f"{name}{_UNFINISHED}")
        self.path(f"{name}{_UNFINISHED}").rename(self.path(name))
        return name

    def load(self, name: str) -> Layer:
        """Raises `OSError`, and `ValueError` for a file that is not what was saved."""
        with (self._directory / name).open("rb") as file:
            layer = Layer.read_from(file)
        if f"{layer.checksum:08x}" != name.rpartition("-")[2]:
            raise ValueError("the kept files of its sandbox are not what was saved")
        return layer

    def remove(self, names: Collection[str]) -> None:
        for name in names:
            (self._directory / name).unlink(missing_ok=True)

    def remove_all_but(self, names: Collection[str]) -> None:
        if self._directory.is_dir():
            self.remove([one for one in os.listdir(self._directory) if one not in names])
