"""Trains adapters on a Tinker server, with the plug-in's `TinkerRollouts`.

The state after each `save_every_steps` steps is the server's; `checkpoints/tinker.json` names it.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import tinker
from pydantic import Field

from prorl_service.schemas import Task
from prorl_service.schemas.base import WireModel
from prorl_service.schemas.sampling import SamplerSpec
from prorl_service.utils.files import whole_file
from prorl_tinker import TinkerRollouts, lora_training_client
from recipes.common import tinker_server
from recipes.common.settings import BadSettings, Training
from recipes.common.training.progress import Progress

LOCAL_KEY = "tml-dummy"
"""Key for a server of this machine: the SDK demands one, SkyRL's server reads none."""


class Arguments(WireModel):
    """`trainer.arguments`. `base_url`: None starts a server here."""

    base_url: str | None
    loss_fn: str
    learning_rate: float = Field(gt=0)
    warmup_updates: int = Field(ge=0)
    weight_decay: float = Field(ge=0)
    grad_clip_norm: float = Field(ge=0)

    def adam(self, update: int) -> tinker.AdamParams:
        """Returns the parameters of an update, counted from 1."""
        share = min(1.0, update / (self.warmup_updates + 1))
        return tinker.AdamParams(
            learning_rate=share * self.learning_rate,
            weight_decay=self.weight_decay,
            grad_clip_norm=self.grad_clip_norm,
        )


class Saved(WireModel):
    """Where a run continues."""

    step: int = 0
    path: str = ""
    training_id: str | None = None


def check(settings: Training) -> Arguments:
    """Raises `BadSettings` for what Tinker's API cannot do."""
    algorithm = settings.algorithm
    if not algorithm.lora_rank:
        raise BadSettings(
            "Tinker trains adapters alone",
            hint="set algorithm.lora_rank=32, and ten times the learning rate",
        )
    if algorithm.kl_coefficient:
        raise BadSettings("Tinker's losses have no KL term", hint="set algorithm.kl_coefficient=0")
    return Arguments.model_validate(settings.arguments())


def train(settings: Training, tasks: Sequence[Task], model: Path, url: str) -> None:
    """Trains, and saves the last state under the name of the run. Raises `BadSettings`."""
    arguments, algorithm = check(settings), settings.algorithm
    sampler = SamplerSpec(max_staleness=algorithm.max_staleness, curriculum=algorithm.curriculum)
    with _server(settings, arguments, model) as base_url:
        key = os.environ.get("TINKER_API_KEY", LOCAL_KEY)
        service = tinker.ServiceClient(base_url=base_url, api_key=key)
        saved = _saved(settings)
        if saved.path:
            client = service.create_training_client_from_state_with_optimizer(saved.path)
        else:
            base = str(settings.model.path or model)
            client = lora_training_client(service, base_model=base, rank=algorithm.lora_rank)
        with TinkerRollouts(
            url,
            client,
            tasks,
            groups_per_step=algorithm.prompts_per_step,
            group_size=algorithm.rollouts_per_prompt,
            limits=settings.agent.limits,
            sampling=settings.sampling,
            dynamic_sampling=sampler if algorithm.dynamic_sampling else False,
            seed=settings.seed + saved.step,
            max_model_len=settings.agent.context,
            tokenizer=str(model),
            training_id=saved.training_id,
            **settings.trainer.rollouts,
        ) as rollouts:
            _loop(settings, arguments, client, rollouts, saved.step)


def _loop(
    settings: Training,
    arguments: Arguments,
    client: tinker.TrainingClient,
    rollouts: TinkerRollouts,
    done: int,
) -> None:
    progress = Progress(
        settings.output / "progress.jsonl", success=settings.agent.success, steps=settings.steps
    )
    updates = settings.algorithm.updates_per_step
    for number in range(done + 1, settings.steps + 1):
        step = rollouts.step()
        metrics = step.metrics
        for index in range(updates):
            part = step.data[index::updates]
            if part:
                config = _clip(settings) if arguments.loss_fn == "ppo" else None
                future = client.forward_backward(part, arguments.loss_fn, config)
                adam = arguments.adam((number - 1) * updates + index + 1)
                update = client.optim_step(adam)
                metrics = rollouts.check(part, future) | metrics
                update.result()
        progress.log(number, metrics, trained_on="prorl/reward")
        if number % settings.save_every_steps == 0 or number == settings.steps:
            path = client.save_state(f"{settings.name}-{number:06d}").result().path
            _save(settings, Saved(step=number, path=path, training_id=rollouts.training_id))


def _clip(settings: Training) -> dict[str, float]:
    algorithm = settings.algorithm
    return {
        "clip_low_threshold": 1 - algorithm.clip_low,
        "clip_high_threshold": 1 + algorithm.clip_high,
    }


@contextmanager
def _server(settings: Training, arguments: Arguments, model: Path) -> Iterator[str]:
    """Yields the URL of the Tinker server."""
    if arguments.base_url is not None:
        yield arguments.base_url
        return
    directory = settings.output / "tinker"
    directory.mkdir(parents=True, exist_ok=True)
    with tinker_server.running(model, directory) as server:
        print(f"Tinker server {server.url}, log {server.log}", flush=True)
        yield server.url


def _file(settings: Training) -> Path:
    return settings.output / "checkpoints/tinker.json"


def _saved(settings: Training) -> Saved:
    file = _file(settings)
    return Saved.model_validate_json(file.read_bytes()) if file.exists() else Saved()


def _save(settings: Training, saved: Saved) -> None:
    file = _file(settings)
    file.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(file) as content:
        content.write(saved.model_dump_json())
