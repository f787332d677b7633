"""Files of rollouts that continue in another process, beside the journal.

A layer of a sandbox is complete or not there, and its name ends with its checksum. What a service
hands over in its orderly end is in a directory that services share, until another one takes it, to
which the front gives the rollout under the same id; a killed service hands nothing over. Blocking:
call all of this in a thread.
"""

import hashlib
import logging
import os
import shutil
import time
import uuid
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from pydantic import Base64Bytes, BaseModel, ValidationError

from prorl_service.resume.rows import SavedRollout, checksum_of
from prorl_service.sandbox.layers import Layer
from prorl_service.schemas import Group
from prorl_service.utils.files import write_whole

log = logging.getLogger(__name__)

_UNFINISHED = ".unfinished"
FORGET_AFTER_S = 24 * 3600.0
"""Age in seconds after which a rollout that nobody took is removed."""


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


class HandedOver(BaseModel):
    request: str
    """Digest of what the rollout was asked to do: an id alone does not identify it."""
    attempt: int
    layer: str
    """Name that its file had; empty: nothing is needed."""
    checksum: int
    continuation: Base64Bytes
    turns: list[Base64Bytes]


class HandoverFiles:
    def __init__(self, directory: Path, layers: LayerFiles) -> None:
        """`layers` are those of this service."""
        self._directory = directory
        self._layers = layers

    def give(self, group: Group, saved: SavedRollout) -> None:
        """Raises `OSError`."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._path(saved.rollout_id)
        if saved.layer:
            _link(self._layers.path(saved.layer), path.with_suffix(".layer"))
        handed = HandedOver.model_construct(
            request=_digest(group),
            attempt=saved.attempt,
            layer=saved.layer,
            checksum=saved.checksum,
            continuation=saved.content,
            turns=[*saved.turns.values()],
        )
        write_whole(path, handed.model_dump_json(), mode=0o600)

    def take(self, group: Group, rollout_id: str, attempt: int) -> SavedRollout | None:
        """Removes what was handed over of a rollout from the directory, and returns it as this
        service's journal has it; None if there is nothing of this very rollout to be used."""
        path = self._path(rollout_id)
        taken = path.with_suffix(f".{uuid.uuid4().hex}")
        try:
            path.rename(taken)  # another service that looks for it finds nothing from now on
        except OSError:
            return None
        try:
            if taken.stat().st_uid not in (0, os.getuid()):
                raise PermissionError(f"{path} belongs to another user")
            handed = HandedOver.model_validate_json(taken.read_bytes())
            if handed.request != _digest(group):
                return None
            saved = SavedRollout(
                rollout_id,
                handed.attempt,
                dict(enumerate(handed.turns)),
                handed.continuation,
                handed.layer,
                handed.checksum,
            )
            saved.check()
            layer = saved.layer and self._layers.adopt(path.with_suffix(".layer"), saved.layer)
        except ValidationError as error:
            problem = error.errors()[0]["msg"]
            log.warning("rollout %s starts from scratch: handed over: %s", rollout_id, problem)
            return None
        except (OSError, ValueError) as error:
            log.warning("rollout %s starts from scratch: %s", rollout_id, error)
            return None
        finally:
            taken.unlink(missing_ok=True)
            path.with_suffix(".layer").unlink(missing_ok=True)
        own = replace(saved, attempt=attempt, layer=layer)
        return own.sealed(checksum_of(own.turns), len(own.turns))

    def tidy(self) -> None:
        """Removes what nobody took."""
        if not self._directory.is_dir():
            return
        for path in self._directory.iterdir():
            try:
                if time.time() - path.stat().st_mtime > FORGET_AFTER_S:
                    path.unlink()
            except OSError as error:
                log.info("%s stays: %s", path, error)

    def _path(self, rollout_id: str) -> Path:
        # Ids may be longer than names of files, and have characters that those may not.
        return self._directory / f"{hashlib.sha256(rollout_id.encode()).hexdigest()}.turns"


def _digest(group: Group) -> str:
    asked = group.model_dump_json(exclude={"lease_s", "owner", "only"})
    return hashlib.sha256(asked.encode()).hexdigest()


def _link(source: Path, target: Path) -> None:
    """Copies the file if it is on another file system. Raises `OSError`."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
