"""Harnesses as command lines name them: NAME, NAME@VERSION, or the TOML file of a preset."""

from pathlib import Path

from prorl_service.gateway.harnesses import preset, store

FILE = ".toml"


def known(harness: str) -> str:
    """Returns NAME or NAME@VERSION, and adds the preset of a file. Raises `InvalidRequest`."""
    if harness.endswith(FILE):
        return preset.add(Path(harness))
    store.parse(harness)
    return harness
