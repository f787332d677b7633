"""Data sets, options and trainers for the training tests and their worker processes."""

from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import Any

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from prorl_service.schemas import Rollout, Sampling
from prorl_trl import ProRLRollout, with_task
from tests.trl.letters import BEGUN

ALL_FAIL = "the last 32 rollouts all failed"
"""Log line of a service whose rollouts all fail."""
AGENTS = [f"tests.trl.letters:{name}Agent" for name in ("Letters", "Forgetful", "Hasty", "Begun")]
SERVICE_OPTIONS = ["--sandbox", "process", *(f"--agent={agent}" for agent in AGENTS)]

SMALL: dict[str, Any] = {
    "per_device_train_batch_size": 8,
    "num_generations": 4,
    "max_completion_length": 40,
    "max_steps": 2,
    "learning_rate": 1e-2,
    "shuffle_dataset": False,
    "vllm_importance_sampling_mode": "token_truncate",
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "use_cpu": True,
    "bf16": False,
    "disable_tqdm": True,
}

TWO_TURNS: dict[str, Any] = {
    "overlong": "keep",
    "sampling": Sampling(max_tokens_per_turn=8),
    "deadline_s": 60,
}


TRAINERS = {"callbacks", "peft_config", "processing_class"}
"""Arguments of `GRPOTrainer`, beside those of `make_trainer`."""


class RecordingRollout(ProRLRollout):
    """Rollouts that keep the tokens given to the trainer last."""

    completion_ids: Sequence[list[int]] = ()

    def __call__(self, prompts: list[Any], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        given = super().__call__(prompts, trainer)
        self.completion_ids = given["completion_ids"]
        return given


class RecordingTrainer(GRPOTrainer):  # type: ignore[misc]
    """Trainer that keeps the rewards of all processes, and the advantages of this one's rows."""

    def _calculate_rewards(self, *args: Any) -> Any:
        table = super()._calculate_rewards(*args)
        self.table: list[list[float]] = table.tolist()
        return table

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        rows = super()._generate_and_score_completions(inputs)
        self.advantages: list[float] = rows["advantages"].tolist()
        return rows


def dataset(faults: Sequence[str | None], agent: str = "letters") -> Dataset:
    """Returns one task for each fault of `LettersAgent`; None is a task that works."""
    return Dataset.from_list(
        [
            {
                "prompt": with_task(
                    [{"role": "user", "content": f"count to {number}"}],
                    task_id=f"count-{number}",
                    agent=agent,
                    data={"fault": fault},
                    solution=[BEGUN, "abc"],
                )
            }
            for number, fault in enumerate(faults)
        ]
    )


def make_trainer(
    rollouts: ProRLRollout,
    policy: Path,
    output: Path,
    *,
    faults: Sequence[str | None] = (None,) * 8,
    agent: str = "letters",
    options: dict[str, Any] | None = None,
    trainer_class: type[GRPOTrainer] = GRPOTrainer,
    functions: Sequence[Any] = (),
    **arguments: Any,
) -> Any:
    """`functions`: reward functions beside the service's rewards."""
    return trainer_class(
        model=str(policy),
        args=GRPOConfig(output_dir=str(output), **SMALL | (options or {})),
        train_dataset=dataset(faults, agent),
        eval_dataset=dataset([None, None]),
        rollout_func=rollouts,
        reward_funcs=[*rollouts.reward_funcs, *functions],
        **arguments,
    )


class Trainings:
    """Trainings of one test on one service; `observed` has all of their rollouts."""

    def __init__(self, url: str, policy: Path, output: Path) -> None:
        self.url, self.policy, self.output = url, policy, output
        self.observed: list[Rollout] = []

    def trainer(self, **given: Any) -> Any:
        """`given`: arguments of `make_trainer`, other `policy` and `url`, and options of
        `ProRLRollout`; what is not given is as in `TWO_TURNS`."""
        names = signature(make_trainer).parameters.keys() | TRAINERS
        arguments = {name: given.pop(name) for name in names & given.keys()}
        options = {"observe": self.observed.extend, **TWO_TURNS, **given}
        rollouts = ProRLRollout(options.pop("url", self.url), **options)
        policy = arguments.pop("policy", self.policy)
        return make_trainer(rollouts, policy, self.output, **arguments)

    def __call__(self, **given: Any) -> Any:
        """Returns a trainer that has trained."""
        trainer = self.trainer(**given)
        trainer.train()
        return trainer


def worst(trainer: Any) -> float:
    """Returns the largest difference of a logprob in all calls, training and evaluation."""
    key = "sampling/sampling_logp_difference/max"
    return max(logged(trainer, key) + logged(trainer, f"eval_{key}"))


def logged(trainer: GRPOTrainer, key: str) -> list[float]:
    return [entry[key] for entry in trainer.state.log_history if key in entry]


def pushed(trainer: Any) -> list[int]:
    """Returns the versions of all pushes of a trainer that has met its rollouts."""
    versions: list[int] = trainer.rollout_func._training.pushes.own
    return versions
