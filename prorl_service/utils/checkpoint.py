"""Check that offered weights are those of the model that the engine was started with.

Engines do not notice that one of several tensors that they fuse is missing, and detect wrong shapes
when they have begun to load. Their plug-ins use it; knows none of the engines.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from huggingface_hub import snapshot_download

Shapes = Mapping[str, list[int]]
"""Shape of each tensor, keyed by its name in the checkpoint."""
HEAD = "lm_head.weight"


def shapes_of(model: str, revision: str | None) -> Shapes:
    """Returns the shapes in a directory or in cached files of the hub; empty if there are none."""
    directory = Path(model)
    if not directory.is_dir():
        try:
            directory = Path(snapshot_download(model, revision=revision, local_files_only=True))
        except (OSError, ValueError):  # loaded by other means
            return {}
    shapes: dict[str, list[int]] = {}
    for path in directory.glob("*.safetensors"):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        shapes |= {name: one["shape"] for name, one in header.items() if name != "__metadata__"}
    return shapes


def difference(offered: Shapes, own: Shapes, *, is_head_tied: bool) -> str | None:
    """Returns what is wrong with `offered`. Names that `own` lacks are left to the model's own
    loader, which may know them."""
    for name in offered.keys() & own.keys():
        if list(offered[name]) != list(own[name]):
            return f"{name} has shape {list(offered[name])}, not {list(own[name])}"
    if offered.keys() - own.keys():
        return None
    missing = own.keys() - offered.keys() - ({HEAD} if is_head_tied else set())
    if missing:
        return f"{min(missing)} is missing ({len(missing)} in all)"
    return None
