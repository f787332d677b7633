"""What the warm start imitates: whole rollouts, in exactly the tokens the service would record.

Demonstrations teach syntax (how to call the tool, when to stop) and copying (the answer is what the
command printed). They do not teach the answer: only `RIGHT_SHARE` of them run the right command.
Finding out which one earns reward is left to reinforcement learning.
"""

import json
from dataclasses import dataclass
from random import Random

from prorl_service.agents.math import MathAgent
from prorl_service.schemas import Message, Segment
from prorl_service.tokens.chat import ChatFormat
from prorl_service.tokens.ledger import Chain
from recipes.demo.tasks import Attempt, Instance, instances

RIGHT_SHARE = 0.15
PER_FAMILY = 720
"""Instances to choose from: all that there are outside the held-out split."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """An attempt at an instance; its output is copied as the final answer, right or wrong."""

    instance: Instance
    attempt: Attempt

    def segment(self, chat: ChatFormat) -> Segment:
        """Mask 1 on what the model is to say. Logprobs and policy versions mean nothing."""
        prompt = MathAgent(self.instance.task()).prompt()
        chain = Chain(chat.prompt_ids(prompt.messages, tools=prompt.tools))
        _say(tool_call(self.attempt.command), chain, chat)
        answer = Message(role="tool", content=self.attempt.output)
        chain.append_context(chat.delta_ids([answer], after=chat.end_of_turn_id))
        _say(self.attempt.output, chain, chat)
        return chain.to_segment()


def demonstrations(count: int, *, seed: int) -> list[Demonstration]:
    rng = Random(f"demonstrations/{seed}")
    chosen = rng.choices(instances("train", PER_FAMILY, seed=seed), k=count)
    return [Demonstration(instance, _attempt(instance, rng)) for instance in chosen]


def tool_call(command: str) -> str:
    """As Qwen3's template writes it."""
    call = json.dumps({"name": "bash", "arguments": {"command": command}})
    return f"<tool_call>\n{call}\n</tool_call>"


def _attempt(instance: Instance, rng: Random) -> Attempt:
    return instance.right if rng.random() < RIGHT_SHARE else rng.choice(instance.wrong)


def _say(text: str, chain: Chain, chat: ChatFormat) -> None:
    ids = [*chat.encode(text), chat.end_of_turn_id]
    chain.append_sampled(ids, [0.0] * len(ids), [0] * len(ids))
