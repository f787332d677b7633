"""Trains a model on SWE tasks: `python -m recipes.swebench.train model=qwen3_8b trainer=verl`.

configs/ has all options; README.md next to this file says what was run. The trainers are VeRL's and
TRL's stock ones.
"""

import hydra
from omegaconf import DictConfig

from prorl_service.cli.program import one_line_errors
from recipes.common.data import rows as data_rows
from recipes.common.records import begin
from recipes.common.settings import Training, settings_of
from recipes.common.training import launch
from recipes.swebench import tasks


@hydra.main(version_base="1.3", config_path="../../configs", config_name="swebench_train")  # type: ignore[untyped-decorator]
def main(config: DictConfig) -> None:
    with one_line_errors():
        settings = settings_of(Training, config)
        rows = tasks.rows_of(settings)
        chosen = tasks.tasks_of(settings, data_rows.chosen(settings.data, rows))
        launch.train(settings, begin(config), chosen, lambda: tasks.tiny_model(settings, rows))


if __name__ == "__main__":
    main()
