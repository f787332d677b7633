"""The service itself on the wire: its engines, their weights, its status."""

import re
from enum import StrEnum
from typing import Annotated, Any
from uuid import uuid4

from pydantic import ConfigDict, Field, ValidationInfo, field_validator

from prorl_service.schemas.base import MAX_INT32, MAX_LEASE_S, Id, WireModel
from prorl_service.schemas.rollouts import Blame, EngineTimes, RolloutState, Stage

SECRET_IN_URL = (
    "contains a user or a password, which would be shown; give an engine's key with "
    "`--backend-key-file FILE`, PRORL_BACKEND_KEY or `api_key`"
)
ENGINE_URL = r"^https?://[^/\s?#@]+/?$"
API_URL = r"^https?://[^\s?#@]+$"
"""URL of a model behind an API, which may have a path."""
API_KIND = "openai"
"""Kind of a model behind an API, which takes messages instead of tokens."""


TrainingId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_\-]{1,60}$")]


class TrainingIdentity(WireModel):
    """One process of one training, which alone may change the policy while it holds that."""

    model_config = ConfigDict(frozen=True)

    training_id: TrainingId = Field(description="Random, and kept in the training's checkpoints.")
    process_id: TrainingId = Field(description="Random, and new in each process.")
    host: str = Field(max_length=255)
    pid: int = Field(ge=0)
    user: str = Field(max_length=255)

    @property
    def key(self) -> str:
        """Name of the process in requests, as the header `Prorl-Training` and in groups."""
        return f"{self.training_id}.{self.process_id}"


class PolicyClaim(WireModel):
    """A training wants the policy, or renews its lease of it."""

    training: TrainingIdentity
    lease_s: float = Field(
        60, gt=0, le=MAX_LEASE_S, description="Seconds without a request until others may have it."
    )
    is_renewal: bool = Field(
        False, description="True: the process held the policy; a later holder keeps it."
    )
    take_over: bool = Field(
        False, description="Take the policy from a training whose lease has not expired."
    )


class PolicyLease(WireModel):
    """The training that holds the policy, or held it last."""

    training: TrainingIdentity
    since: float = Field(description="Unix time in seconds.")
    silent_s: float = Field(description="Seconds since its last request.")
    is_live: bool = Field(description="False once others may have the policy.")


class BackendState(StrEnum):
    HEALTHY = "healthy"
    UPDATING = "updating"
    DOWN = "down"


class EngineReport(WireModel):
    """State of an engine as its front found it, so that the services behind need not ask."""

    state: BackendState
    policy_version: int | None = Field(
        None, description="Version of its weights; null: it was never given any."
    )
    reason: str = ""
    kv_tokens: int | None = Field(
        None,
        ge=0,
        description="Tokens of its KV cache that one service may fill; null: it does not say.",
    )


class BackendSpec(WireModel):
    """An inference engine to use. `tokenizer` is a directory or a name on the hub; it defaults to
    the model that the engine reports."""

    model_config = ConfigDict(hide_input_in_errors=True)

    kind: Id = Field(
        "auto",
        description="Kind of engine, such as vllm; auto: it is asked which one it is. openai: a "
        "model behind an OpenAI-compatible API, whose rollouts are text that nobody trains on.",
    )
    model: str | None = Field(
        None,
        pattern=r"^[!-~]{1,255}$",
        validate_default=True,
        exclude_if=lambda model: model is None,
        description="The model's name, for `openai` alone.",
    )
    url: str = Field(pattern=API_URL, description="With a path, such as /v1, for `openai` alone.")
    tokenizer: str | None = None
    api_key: str | None = Field(
        None,
        pattern=r"^[!-~]{1,4096}$",
        repr=False,
        description="Sent to the engine as a bearer token, and never shown. None keeps the key "
        "with which it was added before.",
        json_schema_extra={"writeOnly": True},
    )
    lease_s: float | None = Field(
        None,
        gt=0,
        le=MAX_LEASE_S,
        description="Seconds after which it is removed unless it is added again; None: never.",
    )
    max_calls: int | None = Field(
        None, ge=1, description="Most calls in flight; None: the service's own limit."
    )
    policy_version: int | None = Field(
        None, ge=0, le=MAX_INT32, description="If others update it: the only version it serves."
    )
    owner: Id | None = Field(
        None, description="The front that adds it. A service has engines of one owner at a time."
    )
    training: Id | None = Field(
        None,
        description="The training that gives it its weights, by the header of the request. Engines "
        "of a training are alone, and leave with it; null: the service gives weights.",
    )
    report: EngineReport | None = Field(
        None,
        description="What its owner knows of it. The service then asks the engine itself only when "
        "calls fail or stay without an answer; null: once a second.",
    )

    @field_validator("model")
    @classmethod
    def _belongs_to_an_api(cls, model: str | None, info: ValidationInfo) -> str | None:
        if (info.data.get("kind") == API_KIND) is (model is None):
            raise ValueError(f"belongs to kind {API_KIND}, which needs it: the model's name there")
        return model

    @field_validator("url", mode="before")
    @classmethod
    def _can_be_shown_and_called(cls, url: object, info: ValidationInfo) -> object:
        """Refuses secrets in URLs, which are shown everywhere."""
        pattern = API_URL if info.data.get("kind") == API_KIND else ENGINE_URL
        if isinstance(url, str) and "@" in url:
            raise ValueError(SECRET_IN_URL)
        if isinstance(url, str) and not re.fullmatch(pattern, url):
            raise ValueError("is not an engine's URL; write it as http://HOST:PORT")
        return url


class EngineGauges(WireModel):
    """What an engine says of itself at a probe."""

    kv_tokens: int | None = Field(
        None, ge=0, description="Tokens that its KV cache holds; null: it does not say."
    )
    kv_use: float = Field(0.0, description="Share of the cache that running calls use.")
    waiting: int = Field(0, description="Calls that wait within the engine.")
    preemptions: int = Field(
        0, description="Calls that it began again for want of cache, since its start."
    )
    timed_calls: int = Field(0, description="Calls whose times it has added up since its start.")
    times: EngineTimes | None = Field(None, description="Their sums, in seconds.")
    started_at: float | None = Field(
        None, description="Unix time of the start of the process that answered, in seconds."
    )


class BackendStatus(WireModel):
    backend_id: str
    url: str
    model: str
    state: BackendState
    policy_version: int
    max_model_len: int
    in_flight: int = Field(description="Calls in flight.")
    max_calls: int | None = Field(None, description="Most calls in flight.")
    sessions: int = Field(0, description="Rollouts whose calls go there.")
    prompt_tokens: int = Field(0, description="Of all calls that it answered.")
    cached_tokens: int = Field(0, description="Of these prompt tokens, those that it had cached.")
    sampled_tokens: int = Field(0, description="In all calls that it answered.")
    gauges: EngineGauges | None = Field(
        None, description="What it says of its cache and its own times; null: nothing."
    )
    reason: str = ""
    owner: str | None = None
    training: str | None = Field(None, description="The training that gives it its weights.")


class Backends(WireModel):
    backends: list[BackendStatus]


class OwnedBackends(WireModel):
    """All engines of one front."""

    owner: Id
    backends: list[BackendSpec]


class Push(WireModel):
    """New weights of the training that holds the policy. The service numbers them: its newest
    version and one."""

    push: Id = Field(
        default_factory=lambda: uuid4().hex,
        description="Name of this push: a repetition with the same name is the same push.",
    )
    after: int = Field(
        0, ge=0, lt=MAX_INT32, description="Newest version that the trainer knows; theirs is above."
    )


class StreamedPush(Push):
    """Weights in the body of a request."""

    base: str = Field(
        "",
        pattern="^([0-9a-f]{64})?$",
        description="SHA-256 of the newest weights' whole file, if the body is a difference from "
        "it; empty: the body is a whole file.",
    )


class WeightsAt(Push):
    """Weights at `path`: a safetensors file that the service can read, or a directory of such files
    that the engines can read."""

    path: str


ADAPTER_CONFIG = "adapter_config"
"""Key of PEFT's configuration, as JSON text, in the metadata of a file with a LoRA adapter."""


class WeightsForm(StrEnum):
    MODEL = "model"
    ADAPTER = "adapter"


class WeightsQuery(WireModel):
    """Weights that a trainer can send."""

    as_file: bool = Field(True, description="A file; False: a directory that the engines see.")
    lora_rank: int = Field(
        0, ge=0, description="Rank of an adapter that could be sent alone; 0: there is none."
    )
    base: str = Field("", description="Model that the adapter is for.")
    nccl: bool = Field(False, description="True if it can broadcast by NCCL, with vLLM's own side.")
    torch_nccl: bool = Field(
        False, description="True if it can do so in a group of torch.distributed, for SGLang."
    )


class WeightsTerms(WireModel):
    """Form, type and place in which a trainer sends its next weights."""

    form: WeightsForm = Field(
        description='"adapter": a LoRA adapter alone; the engines put it on their base model.'
    )
    reason: str = Field("", description="Reason why an adapter has to be merged.")
    dtype: str | None = Field(
        None,
        description="Type that all engines compute in, by torch's name; None: they differ, or do "
        "not say. A wider type is sent in vain.",
    )
    directory: str = Field("", description="Where the service keeps weight files.")
    newest: int = Field(0, description="Newest version that the service knows.")
    base: str = Field(
        "",
        description="SHA-256 of the newest weights' whole file, from which a difference may be "
        "sent; empty: the service takes whole files alone.",
    )
    probe: str = Field(
        "",
        description="Name of a file there. A trainer that sees it writes `weights-HEX.partial` (32 "
        "digits) next to it, renames that to `.safetensors`, and gives the path to "
        "`POST /v1/weights`.",
    )
    workers: int = Field(
        0,
        description="Workers of all engines, if all take weights by NCCL: the trainer broadcasts "
        "them in a group with these. 0: it sends a file.",
    )
    protocol: str = Field(
        "",
        description='Kind of these engines, "vllm" or "sglang"; empty without `workers`.',
    )
    group: str = Field(
        "", description="The NCCL group of these engines; empty: `POST /v1/weights/group` first."
    )


class NcclGroupSpec(WireModel):
    init_info: dict[str, Any] = Field(
        description="vLLM's, or the fields of SGLang's `/init_weights_update_group`, with the "
        "address of the trainer, which is rank 0, and the group's `world_size`. The service gives "
        "each engine its `rank_offset`. SGLang first leaves the group named by `replaced`."
    )


class NcclGroupStatus(WireModel):
    group: str
    engines: list[str]


class BroadcastSpec(Push):
    """A trainer broadcasts weights in the `group` while this call lasts."""

    group: str
    update_info: dict[str, Any] = Field(
        description="Names, types and shapes of the tensors, in their order: vLLM's, or the fields "
        "of SGLang's `/update_weights_from_distributed`."
    )


class WeightsReport(WireModel):
    """`pending` backends were unreachable; they take the weights before they serve again."""

    version: int = Field(description="The service's count, by which tokens name these weights.")
    applied: list[str]
    pending: list[str]


class CacheStatus(WireModel):
    """Admission of rollouts by the engines' KV cache."""

    budget_tokens: int = Field(description="Tokens of all engines' caches that may be expected.")
    expected_tokens: int = Field(description="Tokens that the admitted rollouts should need.")
    admitted: int = Field(description="Rollouts that may sample.")
    held: int = Field(description="Rollouts that wait before their next turn.")
    waiting: int = Field(description="Rollouts that wait to begin RUN.")


class SandboxCounts(WireModel):
    running: int = Field(description="Held by rollouts.")
    warm: int = Field(description="Started ahead, and ready.")
    hits: int = Field(description="Starts that took a warm one.")
    misses: int = Field(description="Starts that did not.")


class ShelfStatus(WireModel):
    """State of the shelf, which keeps ended rollouts for people."""

    bytes: int = Field(description="What it takes on disk.")
    limit_bytes: int
    failure: str | None = Field(None, description="Why it cannot be written.")


class ServiceBehind(WireModel):
    """A service that does the rollouts of a front."""

    name: str
    url: str
    takes_rollouts: bool
    load: int = Field(description="Rollouts that it has.")
    slots: int = Field(description="Rollouts that keep it busy.")
    problem: str = ""


class ServiceStatus(WireModel):
    version: str
    run: str = Field(description="Name of the run that its journal belongs to.")
    started_at: float | None = Field(None, description="Unix time in seconds.")
    is_stopping: bool = Field(description="True once it begins nothing more.")
    failure: str | None = Field(
        None, description="Reason why `/health` fails, or why nothing is accepted."
    )
    policy_version: int
    training: PolicyLease | None = Field(
        None, description="The training that the policy belongs to; null: none has claimed it."
    )
    refused_weights: str | None = Field(
        None,
        description="Why the weights pushed last were given up. The next push is refused with it.",
    )
    model: str | None = Field(None, description="Null before the first engine has answered.")
    tokenizer_digest: str | None = Field(
        None, description="Digest of the engines' tokenizer; null until an engine has answered."
    )
    end_ids: list[int] = Field(
        default_factory=list,
        description="Tokens that end a turn: the model's EOS tokens, and the one of its template.",
    )
    chat_template_digest: str | None = Field(
        None, description="Digest of the chat template that prompts are made with."
    )
    sandbox: str
    sandboxes: SandboxCounts | None = Field(None, description="Null: other services have them.")
    agents: list[str]
    rollouts: dict[RolloutState, int] = Field(description="In flight, and ended but kept.")
    ended: dict[RolloutState, int] = Field(
        default_factory=dict, description="Since the start, acknowledged or not."
    )
    failures: dict[Blame, int] = Field(
        default_factory=dict, description="Of rollouts since the start, by whose fault."
    )
    queues: dict[str, int]
    workers: dict[Stage, int]
    running: dict[Stage, int] = Field(
        default_factory=dict, description="Workers that have a rollout now."
    )
    backends: list[BackendStatus]
    cache: CacheStatus | None = Field(
        None, description="Null while an engine does not say how much its KV cache holds."
    )
    services: list[ServiceBehind] = Field(default_factory=list, description="Those behind a front.")
    shelf: ShelfStatus | None = Field(None, description="Null: it is off.")
    loop_lag_s: float | None = Field(
        None, description="Longest delay of the event loop within the last minute."
    )


class GatewayAccess(WireModel):
    """Where a program elsewhere finds its model. `key` is its API key, for this rollout alone."""

    url: str = Field(description="Base URL; clients of OpenAI's API need `/v1` behind it.")
    key: str
