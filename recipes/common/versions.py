"""Versions that a run was made with: packages, this repository's commit, the model, the machine."""

import hashlib
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = (
    "prorl-service",
    "accelerate",
    "datasets",
    "hydra-core",
    "ray",
    "swebench",
    "torch",
    "transformers",
    "trl",
    "verl",
    "vllm",
)
ROOT = Path(__file__).parents[2]


def versions() -> dict[str, object]:
    return {
        "command": sys.orig_argv,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "commit": commit(),
        "machine": machine(),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def commit() -> str | None:
    """Returns this checkout's commit, marked `-dirty` if files changed since; None without git."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def machine() -> dict[str, str | int | float]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / 2**30, 1),
    }


def model(directory: Path, source: str | None, revision: str | None) -> dict[str, object]:
    """Describes a model. `source`: as configured. The hub's cache names a directory by its
    commit."""
    in_hub_cache = directory.parent.name == "snapshots"
    return {
        "source": source or "made by the recipe",
        "revision": revision,
        "commit": directory.name if in_hub_cache else None,
        "directory": str(directory),
        "config_sha256": hashlib.sha256((directory / "config.json").read_bytes()).hexdigest(),
    }
