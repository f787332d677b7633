"""Demonstrations that a tiny policy imitates before it is trained: whole dialogues.

They teach to ask, to look up, to write calls and to end. They do not teach the rule, nor what a
wish asks for: only `RIGHT_SHARE` of them act rightly. Finding out is left to reinforcement
learning.
"""

from dataclasses import dataclass
from pathlib import Path
from random import Random

from prorl_service.agents.dialogue.agent import DialogueAgent
from prorl_service.inference.reference_engine.imitation import Imitation
from prorl_service.schemas import Message
from recipes.common.training import imitation
from recipes.common.training.imitation import Transcript, tool_call
from recipes.dialogue.tasks import Act, Instance, instances

RIGHT_SHARE = 0.2
USUAL_SHARE = 0.5
"""Share of the usual mistake."""
COUNT = 2000
INSTANCES = 720
"""Instances to choose from: all those outside the held-out split."""
VOCAB_SIZE = 1024
WARM_START = Imitation(steps=600, batch_size=32, learning_rate=6e-3, seed=0)


@dataclass(frozen=True, slots=True)
class Demonstration:
    instance: Instance
    act: Act

    def transcript(self) -> Transcript:
        order, act = self.instance, self.act
        replies = ["Which order?", tool_call("look_up", order.call)]
        answers: list[str | Message] = [
            Message(role="user", content=f"Order {order.number}."),
            order.shown,
        ]
        if act.tool is not None:
            replies.append(tool_call(act.tool, {**order.call, **act.fields}))
            answers.append(act.output)
        prompt = DialogueAgent(order.task()).prompt()
        return Transcript(prompt, (*replies, act.words), answers)


def demonstrations(count: int = COUNT, *, seed: int) -> list[Demonstration]:
    rng = Random(f"demonstrations/{seed}")
    chosen = rng.choices(instances("train", INSTANCES, seed=seed), k=count)
    return [Demonstration(one, _act(one, rng)) for one in chosen]


def _act(one: Instance, rng: Random) -> Act:
    usual, *others = one.wrong
    share = (1 - RIGHT_SHARE - USUAL_SHARE) / len(others)
    weights = [RIGHT_SHARE, USUAL_SHARE, *[share] * len(others)]
    return rng.choices([one.right, usual, *others], weights)[0]


def warm_started(cache: Path, config: Imitation = WARM_START) -> Path:
    """Returns the model's directory: see `imitation.warm_started`."""
    transcripts = [one.transcript() for one in demonstrations(seed=config.seed)]
    return imitation.warm_started(cache, transcripts, config, VOCAB_SIZE)
