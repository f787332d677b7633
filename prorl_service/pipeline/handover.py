"""Kept turns in a directory that services share: a rollout of a service that drains continues at
another one, to which the front gives it under the same id.

Only what a service writes in its orderly end is here; a killed one hands nothing over.
"""

import hashlib
import logging
import os
import shutil
import time
import uuid
from dataclasses import replace
from pathlib import Path

from pydantic import Base64Bytes, BaseModel, ValidationError

from prorl_service.rollouts.journal.turns import KeptRollout, checksum_of
from prorl_service.sandbox.layer_files import LayerFiles
from prorl_service.schemas import Group
from prorl_service.utils.files import write_whole

log = logging.getLogger(__name__)

FORGET_AFTER_S = 24 * 3600.0
"""Age in seconds after which a rollout that nobody took is removed."""


class HandedOver(BaseModel):
    request: str
    """Digest of what the rollout was asked to do: an id alone does not identify it."""
    attempt: int
    layer: str
    """Name that its file had; empty: nothing is needed."""
    checksum: int
    continuation: Base64Bytes
    turns: list[Base64Bytes]


class Handover:
    """Blocking: call it in a thread."""

    def __init__(self, directory: Path, layers: LayerFiles) -> None:
        """`layers` are those of this service."""
        self._directory = directory
        self._layers = layers

    def give(self, group: Group, kept: KeptRollout) -> None:
        """Raises `OSError`."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._path(kept.rollout_id)
        if kept.layer:
            _link(self._layers.path(kept.layer), path.with_suffix(".layer"))
        handed = HandedOver.model_construct(
            request=_digest(group),
            attempt=kept.attempt,
            layer=kept.layer,
            checksum=kept.checksum,
            continuation=kept.content,
            turns=[*kept.turns.values()],
        )
        write_whole(path, handed.model_dump_json(), mode=0o600)

    def take(self, group: Group, rollout_id: str, attempt: int) -> KeptRollout | None:
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
            kept = KeptRollout(
                rollout_id,
                handed.attempt,
                dict(enumerate(handed.turns)),
                handed.continuation,
                handed.layer,
                handed.checksum,
            )
            kept.check()
            layer = kept.layer and self._layers.adopt(path.with_suffix(".layer"), kept.layer)
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
        own = replace(kept, attempt=attempt, layer=layer)
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
