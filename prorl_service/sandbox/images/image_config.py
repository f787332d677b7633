"""The configuration of an image: where its commands start, as whom, with which variables.

Sandboxes have the variables by themselves. Who wants commands to start in `workdir`, or as `user`,
sees to that.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class ImageConfig:
    workdir: str | None = None
    """Directory of WORKDIR; None if the image has none or it is unknown."""
    user: str | None = None
    """Name or id of USER, perhaps with a group after a colon; None if there is none."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of ENV."""

    @classmethod
    def of_oci(cls, config: Mapping[str, Any]) -> Self:
        """Reads the `config` object of an OCI image."""
        pairs = (variable.partition("=") for variable in config.get("Env") or ())
        return cls(
            workdir=config.get("WorkingDir") or None,
            user=config.get("User") or None,
            environment={name: value for name, _, value in pairs},
        )

    def as_oci(self) -> dict[str, Any]:
        return {
            "WorkingDir": self.workdir,
            "User": self.user,
            "Env": [f"{name}={value}" for name, value in self.environment.items()],
        }
