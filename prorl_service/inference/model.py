"""The one model that all backends of a pool serve: that of the first backend to answer.

The model is forgotten when the last backend is removed, so that the next may bring another; but not
once weights were pushed: they fit this model alone, and its backends still have to get them. The
pool knows which backends exist.
"""

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from prorl_service.errors import BackendUnavailable, Conflict
from prorl_service.inference.engines.base import EngineInfo
from prorl_service.schemas import BackendSpec
from prorl_service.tokens.chat import ChatFormat

log = logging.getLogger(__name__)

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


@dataclass(frozen=True, slots=True)
class ServedModel:
    name: str
    chat: ChatFormat
    tokenizer_digest: str
    max_model_len: int
    """Tokens of context that all its backends in use offer; a rollout keeps what it began with."""
    config_digest: str | None = None

    @property
    def identity(self) -> str:
        """What tells it from other models and from another tokenizer, also over a restart."""
        identity = ModelIdentity(self.name, self.config_digest)
        return f"{identity}, tokenizer {self.tokenizer_digest[:16]}"


class CurrentModel:
    def __init__(self, problems: Callable[[], str], reply_format: str | None = None) -> None:
        """`problems`: what is wrong with each backend; "" if there are no backends.
        `reply_format`: see `ChatFormat`."""
        self.problems = problems
        self._reply_format = reply_format
        self.current: ServedModel | None = None
        self._contexts: dict[str, int] = {}
        """Tokens of context that each backend in use offers, keyed by id."""
        self._lock = asyncio.Lock()

    def require(self, name: str | None = None) -> ServedModel:
        """Raises `BackendUnavailable` while there is no model, or if it is no longer `name`."""
        if self.current is None and (problems := self.problems()):
            raise BackendUnavailable(
                f"no inference engine has answered yet ({problems})",
                hint="it is used as soon as it answers; GET /v1/backends shows its state",
            )
        if self.current is None:
            raise BackendUnavailable(
                "the service has no inference engine",
                hint="start one and POST its address to /v1/backends",
            )
        if name not in (None, self.current.name):
            raise BackendUnavailable(
                f"the rollout began with {name!r}, but the service uses {self.current.name!r} now",
                hint="submit the group again, under another id",
                retryable=False,  # its siblings used that model
            )
        return self.current

    def is_in_use(self, name: str) -> bool:
        return self.current is not None and self.current.name == name

    @property
    def least_context(self) -> int:
        return self.current.max_model_len if self.current else 0

    def context_for(self, prompt_tokens: int) -> int:
        """Returns the context of a new rollout: what all backends offer. If its prompt, accepted
        before a smaller backend joined, leaves no room there: the least context where it does."""
        enough = [context for context in self._contexts.values() if context > prompt_tokens]
        return min(enough, default=self.least_context)

    async def agree(
        self,
        backend_id: str,
        spec: BackendSpec,
        info: EngineInfo,
        is_in_use: Callable[[], bool],
    ) -> ServedModel:
        """Checks that the backend serves the current model, which the first backend brings along.

        Changes nothing unless the backend is still in use by then. Raises `Conflict` if it serves
        another model, `InvalidRequest` if it brings no tokenizer.
        """
        async with self._lock:
            if self.current is None:
                model = await _brought(spec, info, self._reply_format)
            else:
                model = _agreed(self.current, spec, info)
            if is_in_use():
                self._contexts[backend_id] = info.max_model_len
                self.current = model = self._with_least_context(model)
            return model

    def leave(self, backend_id: str) -> None:
        self._contexts.pop(backend_id, None)
        if self.current is not None:
            self.current = self._with_least_context(self.current)

    def _with_least_context(self, model: ServedModel) -> ServedModel:
        """Returns the model with the least context on offer. What the last backend offered stands
        until the next joins."""
        least = min(self._contexts.values(), default=model.max_model_len)
        return replace(model, max_model_len=least)

    def forget(self) -> None:
        self.current = None


async def _brought(spec: BackendSpec, info: EngineInfo, reply_format: str | None) -> ServedModel:
    chat = await asyncio.to_thread(ChatFormat.load, spec.tokenizer or info.root, reply_format)
    digest = await asyncio.to_thread(chat.tokenizer_digest)
    if not chat.problem:
        log.info("%s: tool calls are read as %s", info.model, chat.replies.name)
    else:
        log.warning(
            "%s: agents with tools are refused: %s (prorl check-model %s shows more)",
            info.model,
            chat.problem,
            spec.tokenizer or info.root,
        )
    identity = await asyncio.to_thread(ModelIdentity.of, info)
    return ServedModel(info.model, chat, digest, info.max_model_len, identity.config_digest)


def _agreed(model: ServedModel, spec: BackendSpec, info: EngineInfo) -> ServedModel:
    if info.model != model.name:
        raise Conflict(
            f"{spec.url} serves {info.model!r}, but the service uses {model.name!r}",
            hint="a service serves one model at a time: remove its other backends, or start "
            "another service",
        )
    return model
