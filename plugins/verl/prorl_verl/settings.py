"""Settings in the `prorl` node of a VeRL configuration, and those that follow from VeRL's own.

Pure: imports no VeRL, and takes a configuration as nested mappings.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from omegaconf import OmegaConf
from pydantic import Field, field_validator

from prorl_service.client.calls import ServiceUrl
from prorl_service.client.policy import kept_training_id
from prorl_service.client.trainable import SoftPunishment
from prorl_service.schemas import Limits, Sampling, WireModel
from prorl_service.schemas.sampling import SamplerSpec

Mode = Literal["sync", "colocate_async", "separate_async"]

SECTIONS = (
    "prorl",
    "data",
    "actor_rollout_ref",
    "algorithm",
    "reward",
    "trainer",
    "distillation",
    "skip",
    "custom_reward_function",
    "reward_model",
    "sandbox_fusion",
)
"""Parts of a configuration that are read here. Others may hold values not known yet."""


OUR_SAMPLER = "DynamicSampler"
"""Class in `sampler`; another name is VeRL's filter, or a sampler of the user's own."""

BY_MODE = ("surplus", "max_staleness", "groups_ahead", "oversubscription")
"""Options of dynamic sampling that follow the trainer's mode where they are not set."""


REWARD_METRICS = ("reward", "acc", "score", "seq_reward", "seq_final_reward")
"""Names of VeRL's, and of its DAPO recipe's, for what is the reward to the service's filter, which
sees it before it is shaped."""

OVERSUBSCRIPTION = 1.5
"""Default if groups in flight are lost at a step's end: more ends it sooner, and loses more."""


class GatewaySettings(WireModel):
    host: str | None = None
    port: int = Field(0, ge=0, le=65535)
    max_in_flight: int = Field(
        768, ge=1, description="Maximum calls in flight; Ray takes 1000 per engine."
    )


class Settings(WireModel):
    url: ServiceUrl
    token_file: Path | None = None
    agent: str | None = None
    image: str | None = None
    tokenizer: str
    limits: Limits = Limits()
    thinking: bool | None = None
    max_tokens_per_turn: int | None = Field(None, ge=1)
    deadline_s: float = Field(7200, gt=0)
    overlong: SoftPunishment | None = None
    gateway: GatewaySettings = GatewaySettings()
    dynamic_sampling: SamplerSpec = SamplerSpec()
    save: Path | None = None
    take_over: bool = False
    sampler_if_filtered: Mapping[str, str | None] = {}

    @field_validator("dynamic_sampling", mode="before")
    @classmethod
    def _leave_to_mode(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {key: one for key, one in given.items() if key not in BY_MODE or one is not None}

    @field_validator("save")
    @classmethod
    def _is_absolute(cls, directory: Path | None) -> Path | None:
        if directory is not None and not directory.is_absolute():
            raise ValueError("must be absolute: it is written where Ray runs the trainer")
        return directory

    def client_options(
        self, *, retry_s: float | None = None, training: str | None = None
    ) -> dict[str, Any]:
        """Returns the arguments of a client of the service. `retry_s`: None for `deadline_s`.
        Raises `OSError` for an unreadable file of the token."""
        return {
            "url": self.url,
            "token": self.token(),
            "retry_s": self.deadline_s if retry_s is None else retry_s,
            "training": training,
        }

    def token(self) -> str | None:
        """Returns None to leave it to the client. Raises `OSError` for an unreadable file."""
        return self.token_file.read_text().strip() if self.token_file else None


def plain(config: Any) -> dict[str, Any]:
    """Returns the sections that an OmegaConf configuration has, resolved."""
    found = [name for name in SECTIONS if name in config]
    return {name: OmegaConf.to_container(config[name], resolve=True) for name in found}


def settings_of(config: Mapping[str, Any]) -> Settings:
    """Returns the settings in a whole configuration. Raises pydantic's `ValidationError`.

    A response may be as long as VeRL allows, unless the limits allow less. Thinking is as
    `data.apply_chat_template_kwargs` has it, unless `prorl.thinking` is set.
    """
    settings = Settings.model_validate(config["prorl"])
    if settings.thinking is None:
        thinking = template_options(config).get("enable_thinking")
        settings = Settings.model_validate({**config["prorl"], "thinking": thinking})
    longest = int(config["data"]["max_response_length"])
    limit = min(longest, settings.limits.max_response_tokens or longest)
    limits = settings.limits.model_copy(update={"max_response_tokens": limit})
    return settings.model_copy(update={"limits": limits})


def template_options(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns what VeRL's own rollouts would give to the chat template."""
    return config["data"].get("apply_chat_template_kwargs") or {}


def sampling_of(config: Mapping[str, Any], settings: Settings, *, validate: bool) -> Sampling:
    """Returns sampling options of training, or of validation."""
    rollout = config["actor_rollout_ref"]["rollout"]
    source = rollout["val_kwargs"] if validate else rollout
    return Sampling(
        temperature=source["temperature"],
        top_p=source["top_p"],
        top_k=max(0, source["top_k"]),
        thinking=settings.thinking,
        max_tokens_per_turn=settings.max_tokens_per_turn,
    )


def group_size(config: Mapping[str, Any], *, validate: bool) -> int:
    rollout = config["actor_rollout_ref"]["rollout"]
    return int(rollout["val_kwargs"]["n"] if validate else rollout["n"])


def sampler_spec(config: Mapping[str, Any], settings: Settings, mode: Mode) -> SamplerSpec:
    """Derives options that are not set from the mode. Synchronous training stays on-policy, so
    groups in flight when a step is complete are cancelled; otherwise they are carried over, and in
    the asynchronous modes they continue while the trainer trains."""
    spec = settings.dynamic_sampling
    metric = config["algorithm"]["filter_groups"]["metric"]
    metric = "reward" if metric in REWARD_METRICS else metric
    derived: dict[str, Any] = {"filter": spec.filter.model_copy(update={"metric": metric})}
    is_set = spec.model_fields_set
    surplus = spec.surplus if "surplus" in is_set else "cancel" if mode == "sync" else "carry"
    defaults: dict[str, Any] = {"surplus": surplus}
    if surplus == "cancel":
        defaults |= {"max_staleness": 0, "oversubscription": OVERSUBSCRIPTION}
    if mode != "sync":
        defaults |= {"groups_ahead": int(config["data"]["train_batch_size"])}
    derived |= {key: value for key, value in defaults.items() if key not in is_set}
    return spec.model_copy(update=derived)


def draws(config: Mapping[str, Any]) -> bool:
    """Returns whether groups are drawn from a sampler of the service."""
    if not config["algorithm"]["filter_groups"]["enable"]:
        return False
    return bool(config["trainer"]["v1"]["sampler"]["custom_sampler"]["name"] == OUR_SAMPLER)


def is_on_policy(config: Mapping[str, Any], settings: Settings) -> bool:
    """Returns whether all tokens of a step are of the trainer's current weights."""
    mode = config["trainer"]["v1"]["trainer_mode"]
    if draws(config):
        return mode == "sync" and sampler_spec(config, settings, mode).max_staleness == 0
    return bool(mode == "sync")


def draws_per_step(config: Mapping[str, Any]) -> int:
    """Returns the number of mini-batches, one draw each, that VeRL trains on per set of weights."""
    modes = config["trainer"]["v1"]
    return int(modes[modes["trainer_mode"]].get("parameter_sync_step", 1))


def training_id(config: Mapping[str, Any]) -> str | None:
    """Returns the id of the training that VeRL will continue from its checkpoints; None for a new
    one."""
    trainer = config["trainer"]
    directory = Path(trainer["default_local_dir"])
    has_checkpoint = (directory / "latest_checkpointed_iteration.txt").exists()
    is_new = trainer["resume_mode"] == "disable" or not has_checkpoint
    return None if is_new else kept_training_id(directory)


def max_model_len(config: Mapping[str, Any]) -> int:
    """Returns the maximum tokens of prompt and response together."""
    rollout = config["actor_rollout_ref"]["rollout"]
    return int(rollout["max_model_len"] or rollout["prompt_length"] + rollout["response_length"])
