"""The configuration of a recipe (configs/), typed and checked.

Hydra composes it and refuses unknown keys; this module checks the values. VeRL and TRL check their
own arguments (`trainer.arguments`).
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import Field, ValidationError, model_validator

from prorl_service.client.calls import ServiceUrl
from prorl_service.errors import ProRLError
from prorl_service.sandbox import SandboxKind
from prorl_service.schemas import Limits, Sampling, WireModel
from prorl_service.schemas.sampling import Curriculum

if TYPE_CHECKING:
    from prorl_service.inference.reference_engine.imitation import Imitation

S = TypeVar("S", bound="Run")
TrainerName = Literal["trl", "verl", "tinker"]


class BadSettings(ProRLError):
    """The configuration asks for something impossible, or something that this machine lacks."""


class Service(WireModel):
    url: ServiceUrl | None = None
    options: list[Annotated[str, Field(coerce_numbers_to_str=True)]]


class WarmStart(WireModel):
    """Warm start of a small model: see `Imitation`. `tasks`: ids of the rows to imitate,
    if the recipe has no transcripts of its own. `base`: the model to begin with; None: a new tiny
    one, whose tokenizer has at most `vocab_size` tokens, and which `sees` pictures."""

    tasks: list[str] = Field(default_factory=list)
    base: Literal["smollm2"] | None = None
    steps: int = Field(ge=1)
    batch_size: int = Field(ge=1)
    learning_rate: float = Field(gt=0)
    vocab_size: int | None = Field(None, ge=512)
    sees: bool = False

    @model_validator(mode="after")
    def _has_a_tokenizer(self) -> Self:
        if (self.base is None) == (self.vocab_size is None):
            raise ValueError("set either `base` or `vocab_size`")
        if self.sees and self.base is not None:
            raise ValueError("smollm2 does not see: set `vocab_size` instead of `base`")
        return self

    def extent(self) -> "Imitation":
        from prorl_service.inference.reference_engine.imitation import Imitation  # torch

        return Imitation(
            steps=self.steps, batch_size=self.batch_size, learning_rate=self.learning_rate
        )


class Model(WireModel):
    """`path`: a directory or a name on the hub; None if `warm_start` makes the model."""

    name: str
    path: str | None
    revision: str | None
    thinking: bool | None
    engine: Literal["vllm", "reference"]
    tensor_parallel: int = Field(ge=1)
    sequence_parallel: int = Field(ge=1)
    """Number of devices over which VeRL splits each sequence; TRL splits none."""
    tokens_per_device: int = Field(ge=1)
    """Maximum number of tokens that VeRL passes through a device together."""
    warm_start: WarmStart | None
    sampling: dict[str, float]

    @model_validator(mode="after")
    def _comes_from_somewhere(self) -> Self:
        if (self.path is None) == (self.warm_start is None):
            raise ValueError("set either `path` or `warm_start`")
        return self


class Agent(WireModel):
    """`success`: name of the mean reward in logs. `image`: image of tasks that name none.
    `options`: fields of the agent's `task.data`, the same for all tasks. `program`: what takes
    its turns, the service's own loop or the run's `harness`."""

    name: str
    success: str
    image: str | None = None
    options: dict[str, Any]
    program: Literal["loop", "harness"] = "loop"
    context: int = Field(ge=2)
    max_prompt_tokens: int = Field(ge=1)
    max_tokens_per_turn: int | None = Field(ge=1)
    limits: Limits


class Data(WireModel):
    """`make`: the command that writes `rows`."""

    name: str
    rows: Path
    only: list[str] | None
    make: str


class Sandbox(WireModel):
    kind: SandboxKind
    init_workers: int = Field(ge=1)
    run_workers: int = Field(ge=1)
    eval_workers: int = Field(ge=1)


class Algorithm(WireModel):
    name: str
    prompts_per_step: int = Field(ge=1)
    prompts_per_update: int = Field(ge=1)
    rollouts_per_prompt: int = Field(ge=2)
    rollouts_per_device: int = Field(ge=1)
    """Number of rollouts that TRL passes through a device together."""
    learning_rate: float = Field(gt=0)
    warmup_updates: int = Field(ge=0)
    lora_rank: int = Field(ge=0)
    """Rank of the LoRA adapters that are trained; 0 trains all weights."""
    weight_decay: float = Field(ge=0)
    max_grad_norm: float = Field(gt=0)
    clip_low: float = Field(gt=0)
    clip_high: float = Field(gt=0)
    clip_dual: float = Field(gt=1)
    kl_coefficient: float = Field(ge=0)
    kl_estimator: str
    importance_cap: float = Field(gt=0)
    temperature: float = Field(gt=0)
    top_p: float = Field(gt=0, le=1)
    dynamic_sampling: bool
    max_staleness: int = Field(ge=0)
    curriculum: Curriculum | None = None

    @model_validator(mode="after")
    def _has_whole_updates(self) -> Self:
        if self.prompts_per_step % self.prompts_per_update:
            raise ValueError("prompts_per_step must be a multiple of prompts_per_update")
        return self

    @property
    def updates_per_step(self) -> int:
        return self.prompts_per_step // self.prompts_per_update


class Cluster(WireModel):
    """`arguments`: overrides of a trainer's arguments, keyed by the trainer's name."""

    name: str
    nodes: int = Field(ge=1)
    gpus_per_node: int = Field(ge=0)
    arguments: dict[TrainerName, dict[str, Any]]
    environment: dict[str, str]


class Trainer(WireModel):
    name: TrainerName
    arguments: dict[str, Any]
    rollouts: dict[str, Any] = Field(default_factory=dict)

    @property
    def brings_engines(self) -> bool:
        return self.name != "trl"


class Run(WireModel):
    """Settings that training and evaluation have in common."""

    name: str
    output: Path
    resume: Literal["auto", "never"]
    seed: int = Field(ge=0)
    service: Service
    engines: list[str]
    harness: str | None = None
    agent: Agent
    data: Data
    sandbox: Sandbox
    cluster: Cluster
    model: Model

    @model_validator(mode="after")
    def _harness_fits_its_agent(self) -> Self:
        if self.harness is not None and self.agent.program != "harness":
            raise ValueError("harness=NAME needs agent=swe_harness")
        if self.harness is None and self.agent.program == "harness":
            raise ValueError("agent=swe_harness needs harness=NAME: see `prorl harnesses list`")
        return self


class Training(Run):
    steps: int = Field(ge=1)
    save_every_steps: int = Field(ge=1)
    algorithm: Algorithm
    trainer: Trainer

    @property
    def sampling(self) -> Sampling:
        return Sampling(
            temperature=self.algorithm.temperature,
            top_p=self.algorithm.top_p,
            thinking=self.model.thinking,
            max_tokens_per_turn=self.agent.max_tokens_per_turn,
        )

    def arguments(self) -> Any:
        """Returns the trainer's arguments, with the cluster's overrides."""
        own = OmegaConf.create(self.trainer.arguments)
        merged = OmegaConf.merge(own, self.cluster.arguments.get(self.trainer.name, {}))
        return OmegaConf.to_container(merged)


class Evaluation(Run):
    """`pass_at_k`: values of k in addition to 1."""

    seeds: int = Field(ge=1)
    pass_at_k: list[Annotated[int, Field(ge=2)]]

    @model_validator(mode="after")
    def _has_seeds_enough(self) -> Self:
        if max(self.pass_at_k, default=0) > self.seeds:
            raise ValueError(f"pass_at_k has a k above seeds={self.seeds}")
        return self

    @property
    def sampling(self) -> Sampling:
        chosen = Sampling.model_validate(self.model.sampling)
        of_run = {
            "seed": self.seed,
            "thinking": self.model.thinking,
            "max_tokens_per_turn": self.agent.max_tokens_per_turn,
        }
        return chosen.model_copy(update=of_run)


def settings_of(kind: type[S], config: DictConfig) -> S:
    """Validates a configuration. Raises `BadSettings`, which names each wrong key."""
    try:
        plain = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
        return kind.model_validate(plain)
    except OmegaConfBaseException as error:
        raise BadSettings(str(error).splitlines()[0]) from error
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
        raise BadSettings("; ".join(problems), hint="--cfg job shows the configuration") from error
