"""Effects of each field of VeRL's configuration when the service makes the rollouts.

`fields.toml` has the kind of each. Fields that no name there fits are of a newer VeRL, or misspelt.
Imports no VeRL.
"""

import tomllib
from collections.abc import Iterator, Mapping
from importlib.metadata import distribution
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from omegaconf import OmegaConf

Kind = Literal["read", "harmless", "refused", "warned"]
"""It means what it means in VeRL; nothing reads it; it ends the command, or is warned about, if it
is not neutral."""

_TABLES = tomllib.loads((files("prorl_verl") / "fields.toml").read_text(encoding="utf-8"))


def _neutral(table: str) -> dict[str, tuple[Any, str]]:
    return {name: (one.get("neutral"), one["hint"]) for name, one in _TABLES[table].items()}


REFUSED, WARNED, WARNED_IF_DRAWN = map(_neutral, ("refused", "warned", "warned_if_drawn"))
"""Neutral value of each setting, and what to set instead of another value; the last is of settings
of VeRL's own samplers."""
LISTED: list[tuple[str, Kind]] = [
    *(
        (f"{node}.{name}".lstrip("."), kind)
        for kind in ("read", "harmless")
        for node, names in _TABLES[kind].items()
        for name in names.split()
    ),
    *((name, "refused") for name in REFUSED),
    *((name, "warned") for name in (*WARNED, *WARNED_IF_DRAWN)),
]
KINDS = dict(LISTED)


def leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the name and value of each field, except for Hydra's `_target_`."""
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        elif key != "_target_":
            yield f"{prefix}{key}", value


def entry_of(name: str) -> str | None:
    """Returns the name in `KINDS` that decides on a field; None for an unknown field."""
    while name and name not in KINDS:
        name = name.rpartition(".")[0]
    return name or None


def contradictions(
    config: Mapping[str, Any], table: Mapping[str, tuple[Any, str]]
) -> Iterator[tuple[str, str]]:
    """Yields `name=value` of each field that `table` has another neutral value for, and its
    hint."""
    for name, value in leaves(config):
        entry = entry_of(name)
        neutral, hint = table.get(entry or "", (value, ""))
        if value not in (None, neutral):
            yield f"{name}={value}", hint


def unknown(config: Mapping[str, Any]) -> Iterator[str]:
    """Yields `name=value` of each unknown field that is not as VeRL has it."""
    strange = [(name, value) for name, value in leaves(config) if entry_of(name) is None]
    if not strange:
        return
    defaults = OmegaConf.load(_configurations() / "_generated_ppo_trainer.yaml")
    for name, value in strange:
        if value != OmegaConf.select(defaults, name):
            yield f"{name}={value}"


def _configurations() -> Path:
    return Path(str(distribution("verl").locate_file("verl/trainer/config")))
