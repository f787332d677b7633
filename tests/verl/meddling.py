"""A data set of a user's that does more than it should. Loaded by path in the trainer's process."""

from pathlib import Path
from typing import Any

import ray
from verl.checkpoint_engine import CheckpointEngineManager
from verl.utils.dataset.rl_dataset import RLHFDataset


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
