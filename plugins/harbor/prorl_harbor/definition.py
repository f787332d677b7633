"""A task's requirements on its sandbox, and their refusal before anything starts.

Reads files of the task only.
"""

import os
from pathlib import Path

from harbor.environments.definition import DOCKERFILE_NAME
from harbor.models.task.config import TaskConfig

from prorl_service.errors import TaskError
from prorl_service.sandbox.base import SandboxLimits
from prorl_service.sandbox.images.dockerfiles import syntax
from prorl_service.sandbox.images.references import parse

COMPOSE_FILES = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")

MEMORY_MB = 4096
STORAGE_MB = 4096
PROCESSES = 1024
"""Limits of tasks that name none. Storage is in memory, and takes what is written."""

User = str | int | None
AS_ROOT = "run it as root by --ek as_root=true"


def is_root(user: User) -> bool:
    """Returns whether a user, perhaps with a group as in Dockerfiles, is root."""
    return user is None or str(user).partition(":")[0] in ("", "0", "root")


def limits_of(
    *, cpus: float | None, memory_mb: int | None, storage_mb: int | None, processes: int
) -> SandboxLimits:
    """Raises `ValueError` for a limit that is not above 0."""
    disk_mb = STORAGE_MB if storage_mb is None else storage_mb
    limits = SandboxLimits(
        memory_mb=MEMORY_MB if memory_mb is None else memory_mb,
        cpus=float(os.cpu_count() or 1) if cpus is None else float(cpus),
        processes=processes,
        disk_mb=disk_mb,
        file_mb=disk_mb,
    )
    values = {
        "memory_mb": limits.memory_mb,
        "cpus": limits.cpus,
        "storage_mb": disk_mb,
        "processes": processes,
    }
    for name, value in values.items():
        if value <= 0:
            raise ValueError(f"{name} must be above 0, not {value:g}")
    return limits


def check_files(directory: Path) -> None:
    """Raises `ValueError` for a task of several containers."""
    for name in COMPOSE_FILES:
        if (directory / name).exists():
            raise ValueError(
                f"{directory / name}: prorl sandboxes are single containers, without Docker"
                " Compose; give the task a docker_image or a Dockerfile"
            )


def check_image(docker_image: str | None) -> None:
    """Raises `ValueError` for what is no reference of an image."""
    if docker_image is not None:
        try:
            parse(docker_image)
        except TaskError as error:
            raise ValueError(f"docker_image: {error.message} ({error.hint})") from None


def check_users(directory: Path) -> None:
    """Raises `ValueError` if the task, whose environment is in `directory`, names other users."""
    try:
        task = TaskConfig.model_validate_toml((directory.parent / "task.toml").read_text())
    except (OSError, ValueError):  # Harbor has read it before, or never will
        return
    steps = [(f"steps[{number}].", step) for number, step in enumerate(task.steps or ())]
    for at, owner in [("", task), *steps]:
        for role in ("agent", "verifier"):
            user: User = getattr(owner, role).user
            if not is_root(user):
                raise ValueError(
                    f"{at}{role}.user = {user!r}: in prorl sandboxes there is only root; {AS_ROOT}"
                )


def dockerfile_user(directory: Path) -> User:
    """Returns the USER of the last stage of a Dockerfile; None if there is none, or if its name is
    known only when the image is built. Raises `ValueError` for a Dockerfile that cannot be read."""
    path = directory / DOCKERFILE_NAME
    if not path.exists():
        return None
    user = None
    try:
        for instruction in syntax.parse(path.read_text(errors="replace"), str(path)).instructions:
            if instruction.name == "FROM":
                user = None
            elif instruction.name == "USER" and "$" not in instruction.rest:
                user = instruction.rest.strip("\"'")
    except TaskError as error:
        raise ValueError(f"{error.message} ({error.hint})") from None
    return user
