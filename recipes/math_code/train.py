"""Trains a model on problems: `python -m recipes.math_code.train task=math model=qwen3_4b`.

configs/ has all options; docs/recipes.md says what was run. The trainers are VeRL's and TRL's
stock ones.
"""

import hydra
from omegaconf import DictConfig

from prorl_service.cli.program import one_line_errors
from recipes.common.records import begin
from recipes.common.settings import Training, settings_of
from recipes.common.training import launch
from recipes.math_code import tasks


@hydra.main(version_base="1.3", config_path="../../configs", config_name="math_code_train")  # type: ignore[untyped-decorator]
def main(config: DictConfig) -> None:
    with one_line_errors():
        settings = settings_of(Training, config)
        chosen = tasks.tasks_of(settings, tasks.problems_of(settings))
        launch.train(settings, begin(config), chosen, lambda: tasks.tiny_model(settings))


if __name__ == "__main__":
    main()
