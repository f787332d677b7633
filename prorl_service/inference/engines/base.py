"""The protocol of all kinds of inference engines.

A new kind is one class, in a file beside this one, and one line in `kinds`. It needs no other
module: `Backend` has the time limits and the order of an update, the pool everything that concerns
several engines. Makes no calls itself.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, get_args

from prorl_service.errors import BackendRejected
from prorl_service.inference.base import Generation
from prorl_service.inference.engines.http import EngineHttp, Progress
from prorl_service.inference.engines.versions import (
    INT32_END,
    NEVER_UPDATED,
    require,
    version_of,
)
from prorl_service.inference.prompt_json import EncodedPrompt
from prorl_service.inference.sources import Broadcast, WeightDirectory, WeightFile, WeightSource
from prorl_service.schemas import EngineGauges, EngineTimes, LogprobsMode, Sampling, StopReason
from prorl_service.tokens.chat import ChatFormat

__all__ = [
    "INT32_END",
    "Broadcast",
    "Engine",
    "EngineCall",
    "EngineGauges",
    "EngineHttp",
    "EngineInfo",
    "EngineTimes",
    "Generation",
    "Intake",
    "PauseMode",
    "Progress",
    "Transfer",
    "WeightDirectory",
    "WeightFile",
    "WeightSource",
    "checked",
    "read_models",
    "require",
    "version_of",
]

PauseMode = Literal["abort", "keep"]
UNLIKELY = -9999.0
"""Logprob that an engine reports in place of one that is not finite."""
ROUNDING = 1e-3
ADAPTER_PREFIX = "prorl-"
"""Prefix of the names of our adapters in an engine."""
NO_FILES = "pass weights through a directory that the engine sees, too"


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """An engine's own description."""

    model: str
    root: str
    """Directory, or name on the hub, where the engine found the model."""
    max_model_len: int
    owned_by: str
    """Owner that the engine names for its model: usually the engine's own name."""
    dtype: str | None = None
    """As in `Intake`; None if another route may report it."""
    logprobs_mode: str | None = None
    """Mode of its logprobs, by vLLM's name; None if another route may report it."""
    adapters: Mapping[str, str] = field(default_factory=dict)
    """Directories of our adapters, keyed by name."""
    label: str = NEVER_UPDATED
    """Label of its weights; see `versions`."""
    is_paused: bool = False
    """Outside of an update, the trace of one that failed or was cut short, unless it is lent."""
    is_lent: bool = False
    """True while its owner uses it for something else, and will resume it."""
    needs_for_label: str = ""
    """What would make it report the version of weights that others gave it; "" if it does."""

    @property
    def policy_version(self) -> int | None:
        """Version of its weights; None if it was never given any."""
        return version_of(self.label)

    @property
    def has_first_base(self) -> bool:
        """True if the weights below any adapter are those that the engine was started with."""
        return self.policy_version is None or bool(self.adapters)


@dataclass(frozen=True, slots=True)
class Intake:
    """What an engine takes, apart from prompts. The defaults are those of one that takes
    directories alone, and does not say how it computes."""

    dtype: str | None = None
    """Type that the engine computes in, by torch's name."""
    needs_for_files: str = NO_FILES
    """What would make it take files of weights; "" if it takes them, or may."""
    max_lora_rank: int = 0
    """Largest rank of an adapter that the engine puts on its model; 0: it takes no adapters."""
    workers: int = 0
    """Number of the engine's processes in a broadcast; 0: it takes no broadcasts."""
    logprobs_mode: LogprobsMode | None = None
    """Whether its logprobs are of the distribution that it samples from; None: it does not say."""
    takes_seeds: bool = True
    """False for an engine that ignores seeds, or that a seeded call may end."""

    def require_files(self, url: str) -> None:
        """Raises `BackendRejected` if the engine takes no files."""
        if self.needs_for_files:
            raise BackendRejected(
                f"{url} takes no files of weights from trainers", hint=self.needs_for_files
            )


@dataclass(frozen=True, slots=True)
class EngineCall:
    """One model call. `stop`: texts at which the engine may stop; some sample on."""

    prompt: EncodedPrompt
    sampling: Sampling
    max_tokens: int
    seed: int | None
    session_id: str
    stop_token_ids: Sequence[int] = ()
    stop: Sequence[str] = ()
    pictures: Sequence[bytes] = ()
    """The pictures of the prompt, in their order."""


class Transfer(ABC):
    """One way of giving an engine weights, step by step. All methods raise `BackendError`;
    `WeightsRejected` means that the engine has not touched its own weights."""

    @property
    def pause_mode(self) -> PauseMode:
        """`keep` unless calls in flight could not continue with the new weights."""
        return "keep"

    async def prepare(self, on_progress: Progress) -> None:  # noqa: B027 - not every way needs it
        """Runs while the engine samples; brings the weights near it."""

    async def meet(self) -> None:  # noqa: B027 - as above
        """Waits, while the engine is paused with its old weights, for other engines."""

    @abstractmethod
    async def swap(self, label: str) -> None:
        """Puts the weights in place, and labels them."""


class Engine(ABC):
    """One engine, at one address. Methods raise `BackendError`; `EngineHttp` raises it for them."""

    kind: ClassVar[str]
    """Name in `BackendSpec.kind`, and in traces."""
    owned_by: ClassVar[str] = ""
    """Owner by which it is recognised: that in the answer of its /v1/models."""
    hints: ClassVar[Mapping[int, str]] = {}
    """Hints for refusals, by HTTP status."""

    def __init__(self, http: EngineHttp) -> None:
        self.http = http
        self.model_name = ""
        """Name of the model to ask for, at an API that has several."""
        self.chat: ChatFormat | None = None
        """Format of the model, once it is known, for engines that take messages."""

    @property
    def sees(self) -> bool:
        """True if calls may have pictures."""
        return False

    @property
    def needs_probes(self) -> bool:
        """True if the versions of its tokens are known only by asking."""
        return False

    async def serves(self) -> EngineInfo:
        """Returns what /v1/models says."""
        return await self.http.ask("GET", "/v1/models", read_models)

    @abstractmethod
    async def describe(self, info: EngineInfo) -> EngineInfo:
        """Adds to what /v1/models says: the label of the weights, pauses, loans."""

    async def check_health(self) -> None:
        """Returns if the engine's process is alive; a paused engine is, too."""
        await self.http.ask("GET", "/health", lambda _: None)

    async def load(self) -> EngineGauges | None:
        """Returns what fills the engine now, for admission; None if it does not say."""
        return None

    async def intake(self, info: EngineInfo) -> Intake:
        """Raises `BackendRejected` if it says that training cannot use its logprobs."""
        return Intake()

    async def probe_logprobs(self, vocab_size: int) -> LogprobsMode:
        """Finds the mode of logprobs out by sampling, if the engine does not say it. Raises
        `BackendRejected` if training cannot use them."""
        return "unknown"

    @abstractmethod
    async def generate(self, call: EngineCall) -> Generation:
        """Returns what `checked` returns. If cancelled, the engine aborts the call."""

    @abstractmethod
    async def pause(self, mode: PauseMode) -> None:
        """Returns once sampling has stopped. `keep` freezes the calls in flight, `abort` ends
        them."""

    @abstractmethod
    async def resume(self) -> None: ...

    @abstractmethod
    async def transfer(self, source: WeightSource, info: EngineInfo, intake: Intake) -> Transfer:
        """Returns the way in which the engine gets `source`. Raises `BackendRejected` if there is
        none."""

    async def join_group(self, init_info: Mapping[str, Any]) -> None:
        """Has all workers join a trainer's NCCL group; for engines with `Intake.workers`."""
        raise BackendRejected(f"{self.http.url} takes no broadcasts")

    async def process(self) -> str:
        """Returns an identifier of this start of the engine; for engines as above."""
        raise BackendRejected(f"{self.http.url} does not tell one start from another")


def read_models(answer: Any) -> EngineInfo:
    """Reads the answer of /v1/models, whose first model is the one that is served."""
    first, *others = answer["data"]
    name, root, max_model_len = first["id"], first["root"], first["max_model_len"]
    require(type(name) is str and type(root) is str, "a model's id or root is not a string")
    require(type(max_model_len) is int, "max_model_len is not an integer")
    return EngineInfo(
        model=name,
        root=root,
        max_model_len=max_model_len,
        owned_by=str(first["owned_by"]),
        dtype=first.get("dtype"),
        logprobs_mode=first.get("logprobs_mode"),
        adapters={one["id"]: one["root"] for one in others if one["id"].startswith(ADAPTER_PREFIX)},
    )


def checked(answer: Generation) -> Generation:
    """Returns an engine's answer, which the rest of the service then trusts. Raises `ValueError`
    for one that no engine can have sampled."""
    ids, logprobs, versions = answer.token_ids, answer.logprobs, answer.policy_versions
    require(answer.finish_reason in get_args(StopReason), f"finish_reason {answer.finish_reason!r}")
    require(ids or answer.finish_reason == "abort", "no ids")
    # Thousands of ids: no loop in Python.
    require(set(map(type, ids)) <= {int}, "ids that are not integers")
    require(min(ids, default=0) >= 0, "negative ids")
    require(len(logprobs) == len(ids), f"{len(logprobs)} logprobs, {len(ids)} ids")
    require(len(versions) == len(ids), f"{len(versions)} versions, {len(ids)} ids")
    require(all(0 <= one < INT32_END for one in set(versions)), "versions that cannot be kept")
    require(type(answer.cached_tokens) is int, f"cached_tokens {answer.cached_tokens!r}")
    least, most = min(logprobs, default=0.0), max(logprobs, default=0.0)
    require(least > UNLIKELY and most < ROUNDING, "impossible logprobs")
    if most > 0:
        return replace(answer, logprobs=[min(logprob, 0.0) for logprob in logprobs])
    return answer
