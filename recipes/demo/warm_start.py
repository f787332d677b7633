"""Supervised start of the demo's policy: after it, rollouts are well formed and mostly wrong."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from prorl_service.inference.reference_engine.imitation import Imitation
from recipes.common.training import imitation
from recipes.demo.demonstrations import Demonstration, demonstrations
from recipes.demo.programs import form_of
from recipes.smollm import model as smollm

Policy = Literal["tiny", "smollm2"]
VOCAB_SIZE = 1024
"""Vocabulary of a tiny model, with room for all merges that the demonstrations support (about
600)."""


@dataclass(frozen=True, slots=True)
class WarmStart:
    """Extent of the imitation. With the defaults, 99 of 100 numbers are copied correctly.
    `pretrained`: it begins with SmolLM2, not with a tiny model's random weights."""

    demonstrations: int = 2000
    steps: int = 600
    batch_size: int = 32
    learning_rate: float = 6e-3
    seed: int = 0
    pretrained: bool = False

    @property
    def extent(self) -> Imitation:
        return Imitation(
            steps=self.steps,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            seed=self.seed,
        )


WARM_STARTS: dict[Policy, WarmStart] = {
    "tiny": WarmStart(),
    "smollm2": WarmStart(steps=24, batch_size=8, learning_rate=2e-4, pretrained=True),
}


def warm_started(
    cache: Path, config: WarmStart = WarmStart(), *, program: str | None = None
) -> Path:
    """Returns the model's directory: see `imitation.warm_started`. `program`: the agent that the
    demonstrations are of, by default the service's own."""
    examples = demonstrations(config.demonstrations, seed=config.seed)
    transcribed = Demonstration.transcript if program is None else form_of(program).transcript
    transcripts = [transcribed(example) for example in examples]
    base = smollm.cached() if config.pretrained else VOCAB_SIZE
    return imitation.warm_started(cache, transcripts, config.extent, base)
