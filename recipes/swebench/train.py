"""Trains a model on SWE tasks: `python -m recipes.swebench.train model=qwen3_8b trainer=verl`.

configs/ has all options; README.md next to this file says what was run. The trainers are VeRL's and
TRL's stock ones.
"""

from omegaconf import DictConfig

from recipes.common.data import rows as data_rows
from recipes.common.entry import command
from recipes.common.records import begin
from recipes.common.settings import Training
from recipes.common.training import launch
from recipes.swebench import tasks


@command(
    Training,
    "swebench_train",
    tasks.of,
    "model=tiny trainer=trl",
    "model=qwen3_8b trainer=verl",
    "model=qwen3_14b trainer=verl cluster=slurm",
)
def main(settings: Training, config: DictConfig) -> None:
    rows = tasks.rows_of(settings)
    chosen = tasks.tasks_of(settings, data_rows.chosen(settings.data, rows))
    launch.train(settings, begin(config), chosen, lambda: tasks.tiny_model(settings, rows))


if __name__ == "__main__":
    main()
