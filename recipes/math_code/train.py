"""Trains a model on problems: `python -m recipes.math_code.train task=math model=qwen3_4b`.

configs/ has all options; docs/recipes.md says what was run. The trainers are VeRL's and TRL's
stock ones, and a loop on Tinker's API.
"""

from omegaconf import DictConfig

from recipes.common.entry import command
from recipes.common.records import begin
from recipes.common.settings import Training
from recipes.common.training import launch
from recipes.math_code import tasks


@command(
    Training,
    "math_code_train",
    tasks.of,
    "task=math model=tiny trainer=trl",
    "task=math model=qwen3_4b trainer=verl",
    "task=math model=smollm2 trainer=trl steps=10",
)
def main(settings: Training, config: DictConfig) -> None:
    chosen = tasks.tasks_of(settings, tasks.problems_of(settings))
    launch.train(settings, begin(config), chosen, lambda: tasks.tiny_model(settings))


if __name__ == "__main__":
    main()
