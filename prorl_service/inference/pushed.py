"""Weights that trainers push, as the pool and the journal remember them."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from prorl_service.errors import WeightsRejected
from prorl_service.inference.engines.versions import label_of
from prorl_service.inference.model import ModelIdentity
from prorl_service.inference.sources import Broadcast, WeightDirectory, WeightFile, WeightSource


@dataclass(slots=True, eq=False)
class NumberedWeights:
    source: WeightSource
    version: int
    push: str = ""
    """Name that the trainer gave the push."""
    training: str | None = None
    """Id of the training that pushed them."""
    model: ModelIdentity | None = None
    """Model that the weights belong to; None until an engine has named it."""

    @property
    def label(self) -> str:
        """Label of the weights in an engine."""
        return label_of(self.version, self.push)

    def fields(self) -> dict[str, Any]:
        file = self.source if isinstance(self.source, WeightFile) else None
        return {
            "path": str(self.source.path),
            "is_streamed": file is not None,
            "is_adapter": file is not None and file.is_adapter,
            "digest": file.digest if file else "",
            "base": file.base if file else "",
            "is_broadcast": isinstance(self.source, Broadcast),
            "version": self.version,
            "push": self.push,
            "training": self.training,
            "model": None if self.model is None else asdict(self.model),
        }

    @classmethod
    def of(cls, fields: Mapping[str, Any], directory: Path) -> Self:
        path, model = fields["path"], fields.get("model")
        if (moved := directory / Path(path).name).is_file():
            path = str(moved)
        identity = None if model is None else ModelIdentity(**model)
        source: WeightSource = WeightDirectory(path)
        if fields["is_streamed"]:
            texts = [fields.get(name, "") for name in ("digest", "base")]
            source = WeightFile(Path(path), fields.get("is_adapter", False), *texts)
        elif fields.get("is_broadcast"):
            source = Broadcast()
        push, training = fields.get("push", ""), fields.get("training")
        return cls(source, fields["version"], push, training, identity)


@dataclass(frozen=True, slots=True)
class RefusedWeights:
    """Weights that were pushed while no engine was in reach, and refused by the first to return."""

    version: int
    reason: str
    training: str | None = None
    """Id of the training that pushed them."""

    def error(self) -> WeightsRejected:
        return WeightsRejected(
            f"the weights of version {self.version} were given up: {self.reason}",
            hint="the weights before them serve on; mend the policy, or go back to a checkpoint",
        )


@dataclass(frozen=True, slots=True)
class PushedWeights:
    """Weights that trainers have pushed, as the journal keeps them."""

    newest: NumberedWeights | None = None
    """Last weights that an engine has taken."""
    offered: NumberedWeights | None = None
    """Weights pushed later, for the first engine that comes back to take or refuse."""
    refusal: RefusedWeights | None = None
    """Refusal that no push was told of."""

    def files(self) -> set[str]:
        sources = [one.source for one in (self.newest, self.offered) if one is not None]
        differences = {str(one.difference) for one in sources if isinstance(one, WeightFile)}
        return {str(one.path) for one in sources} | differences

    def to_json(self) -> bytes:
        newest, offered = (one and one.fields() for one in (self.newest, self.offered))
        refusal = self.refusal and asdict(self.refusal)
        return json.dumps({"newest": newest, "offered": offered, "refusal": refusal}).encode()

    @classmethod
    def from_json(cls, text: bytes | None, directory: Path) -> Self:
        """`text`: None if no weights were pushed. `directory`: that of the service's own files,
        which may have been restored elsewhere."""
        if text is None:
            return cls()
        fields = json.loads(text)
        if "path" in fields:  # of a service that kept the newest alone
            return cls(NumberedWeights.of(fields, directory))
        newest, offered = (
            one and NumberedWeights.of(one, directory)
            for one in (fields["newest"], fields["offered"])
        )
        return cls(newest, offered, fields["refusal"] and RefusedWeights(**fields["refusal"]))
