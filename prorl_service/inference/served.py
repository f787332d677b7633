"""The one model that all backends of a pool serve: that of the first one that answers.

With the last backend removed it is forgotten, so that the next may bring another; but not once
weights were pushed: they fit this model alone, and its backends are still to be given them. Which
backends there are the pool knows.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from prorl_service.errors import BackendUnavailable, Conflict
from prorl_service.inference.backend import EngineInfo
from prorl_service.schemas import BackendSpec
from prorl_service.tokens.chat import ChatFormat


@dataclass(frozen=True, slots=True)
class ServedModel:
    name: str
    chat: ChatFormat
    max_model_len: int
    """The least that one of its backends has taken."""


class ModelInUse:
    def __init__(self) -> None:
        self.current: ServedModel | None = None
        self._lock = asyncio.Lock()

    def require(self, name: str | None = None) -> ServedModel:
        """Raises `BackendUnavailable` while there is none, and if it is no longer `name`."""
        if self.current is None:
            raise BackendUnavailable(
                "the service knows no inference engine",
                hint="start one and POST its address to /v1/backends",
            )
        if name not in (None, self.current.name):
            raise BackendUnavailable(
                f"the rollout began with {name!r}, the service uses {self.current.name!r} by now",
                hint="submit the group again, under another id",
            )
        return self.current

    async def agree(
        self, spec: BackendSpec, info: EngineInfo, is_in_use: Callable[[], bool]
    ) -> ServedModel:
        """That the backend serves it, or brings it along, if it is then still in use.

        Raises `Conflict` if it serves another, `InvalidRequest` if it brings no tokenizer.
        """
        async with self._lock:
            model = await _agreed(self.current, spec, info)
            if is_in_use():
                self.current = model
            return model

    def forget(self) -> None:
        self.current = None


async def _agreed(model: ServedModel | None, spec: BackendSpec, info: EngineInfo) -> ServedModel:
    if model is None:
        chat = await asyncio.to_thread(ChatFormat.load, spec.tokenizer or info.root)
        return ServedModel(info.model, chat, info.max_model_len)
    if info.model != model.name:
        raise Conflict(
            f"{spec.url} serves {info.model!r}, the service uses {model.name!r}",
            hint="one service serves one model at a time: remove the backends of that one, or "
            "start another service",
        )
    return replace(model, max_model_len=min(info.max_model_len, model.max_model_len))
