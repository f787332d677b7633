"""Data sets of a user's that do more than they should. Loaded by path in the trainer's process."""

from pathlib import Path
from typing import Any

import ray
from verl.checkpoint_engine import CheckpointEngineManager
from verl.utils.dataset.rl_dataset import RLHFDataset

from prorl_verl import manager
from prorl_verl.settings import sampling_of


class OtherWeights(RLHFDataset):  # type: ignore[misc]
    """Gives the engines the weights of another model after each update."""

    def __init__(self, data_files: Any, *args: Any, **options: Any) -> None:
        super().__init__(data_files, *args, **options)
        update = CheckpointEngineManager.update_weights
        other = Path(self.data_files[0]).parent / "other/model.safetensors"

        def and_then_other(manager: Any, global_steps: int | None = None) -> Any:
            done = update(manager, global_steps)
            if global_steps:
                server = ray.get_actor("tiny_server_0")
                ray.get(server.update_weights.remote(str(other), None))
            return done

        CheckpointEngineManager.update_weights = and_then_other


class Seeded(RLHFDataset):  # type: ignore[misc]
    """Has the service sample with a seed: VeRL's own is its engines', whose calls have no order."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)

        def seeded(*given: Any, **options: Any) -> Any:
            return sampling_of(*given, **options).model_copy(update={"seed": 7})

        vars(manager)["sampling_of"] = seeded
