"""Identity of an engine's model, so that weights of one model are never loaded into another."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from prorl_service.errors import Conflict
from prorl_service.inference.engines.base import EngineInfo

NOT_OF_THE_MODEL = ("_name_or_path", "transformers_version", "dtype", "torch_dtype")
"""Keys of a config.json that differ between copies of one model."""


class OtherModel(Conflict):
    """The engine serves a model other than the one that the weights belong to."""


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    name: str
    config_digest: str | None
    """Digest of the model's config.json; None if it cannot be read from here."""

    @classmethod
    def of(cls, info: EngineInfo) -> "ModelIdentity":
        """Reads the model's config.json, a small file."""
        return cls(info.model, _digest(Path(info.root) / "config.json"))

    def is_another(self, other: "ModelIdentity") -> bool:
        digests = (self.config_digest, other.config_digest)
        return self.name != other.name or (None not in digests and len({*digests}) > 1)

    def __str__(self) -> str:
        digest = self.config_digest
        return repr(self.name) if digest is None else f"{self.name!r} (config {digest[:8]})"


def _digest(config: Path) -> str | None:
    try:
        fields = json.loads(config.read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(fields, dict):
        return None
    fields = {key: one for key, one in fields.items() if key not in NOT_OF_THE_MODEL}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
