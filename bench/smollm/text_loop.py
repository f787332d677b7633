"""A text-based training loop, as a stand-in for `ProRLRollout`: the trainer gets messages.

The service runs the rollouts. Of each, the loop reads what was said, renders it with the chat
template, and tokenises that as one text. The loss is on what lies in the assistant's turns. Text
has no logprobs: the trainer takes its own for those of sampling.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

from prorl_service import local
from prorl_service.client import RolloutClient
from prorl_service.client.policy import HeldPolicy
from prorl_service.schemas import Limits, Rollout, Sampling
from prorl_service.schemas.views import RolloutText
from prorl_trl import ProRLRollout
from prorl_trl.convert import GroupMaker
from recipes.demo import train as demo
from recipes.demo.evaluate import evaluate, success
from recipes.demo.tasks import CONTEXT, LIMITS, instances
from recipes.demo.warm_start import WARM_STARTS, warm_started

REPLY = re.compile(r"<\|im_start\|>assistant\n(.*?(?:<\|im_end\|>|$))", re.DOTALL)
DEADLINE_S = 3600
HELDOUT_PER_FAMILY = 50


@dataclass(frozen=True, slots=True)
class TextRow:
    """A conversation's tokens, and where its replies lie in them."""

    ids: list[int]
    mask: list[int]
    replies: list[list[int]]

    @property
    def prompt_length(self) -> int:
        return self.mask.index(1)


@dataclass(slots=True)
class Drift:
    """What became of sampled tokens on their way through text."""

    turns: int = 0
    changed_turns: int = 0
    logprob_diffs: list[float] = field(default_factory=list)
    """Differences of a whole reply's logprob, in nats, of rollouts with a changed turn."""


class TextLoop:
    """`rollout_func` of a GRPOTrainer, with the arguments of `ProRLRollout` that the demo uses."""

    drift = Drift()
    """Drift of all rollouts of this process."""

    def __init__(
        self,
        url: str,
        *,
        limits: Limits,
        observe: Callable[[Sequence[Rollout]], None] | None = None,
        dynamic_sampling: bool = False,
    ) -> None:
        assert not dynamic_sampling
        self._limits, self._observe = limits, observe or (lambda _: None)
        self._policy = HeldPolicy(url).claim()
        self._client = RolloutClient(url, training=self._policy.key)
        self._directory = TemporaryDirectory(prefix="prorl-bench-")
        self._trainer: Any = None
        self._success: list[float] = []

    @property
    def reward_funcs(self) -> list[Callable[..., list[float]]]:
        return [self._reward]

    def _reward(
        self, text_reward: list[float], log_metric: Callable[[str, float], None], **_: Any
    ) -> list[float]:
        log_metric(demo.SUCCESS, sum(self._success) / len(self._success))
        return text_reward

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        self._trainer = trainer
        self.push_weights()
        maker = GroupMaker(None, Sampling(), self._limits)
        name = f"text-{trainer.state.global_step}"
        groups = maker.groups(prompts, n=trainer.num_generations, name=name)
        self._client.submit(groups)
        ids = [one for group in groups for one in group.rollout_ids()]
        ended = {one.rollout_id: one for one in self._client.stream(ids, DEADLINE_S)}
        rollouts = [ended[one] for one in ids]
        self._observe(rollouts)
        self._success = [one.reward_components["correct"] for one in rollouts]
        rows = [text_row(trainer._tokenizer, self._client.text(one)) for one in ids]
        for rollout, row in zip(rollouts, rows, strict=True):
            self._compare(rollout, row)
        return {
            "prompt_ids": [row.ids[: row.prompt_length] for row in rows],
            "completion_ids": [row.ids[row.prompt_length :] for row in rows],
            "env_mask": [row.mask[row.prompt_length :] for row in rows],
            "logprobs": None,
            "text_reward": [rollout.reward for rollout in rollouts],
        }

    def push_weights(self) -> None:
        self._trainer.model.save_pretrained(self._directory.name)
        self._client.load_weights(str(Path(self._directory.name) / "model.safetensors"))

    def _compare(self, rollout: Rollout, row: TextRow) -> None:
        assert rollout.trajectory is not None
        (segment,) = rollout.trajectory.segments
        sampled = [segment.response_ids[one.start : one.stop] for one in rollout.trajectory.turns]
        changed = sum(a != b for a, b in zip(sampled, row.replies, strict=True))
        self.drift.turns += len(sampled)
        self.drift.changed_turns += changed
        if changed:
            own = self._logprob(row)
            self.drift.logprob_diffs.append(abs(own - sum(segment.logprobs)))

    def _logprob(self, row: TextRow) -> float:
        """Returns the logprob of all replies under the weights that sampled them."""
        ids = torch.tensor([row.ids])
        with torch.inference_mode():
            logprobs = self._trainer.model(ids).logits[0, :-1].float().log_softmax(-1)
        own = logprobs.gather(1, ids[0, 1:, None])[:, 0]
        return float(own[torch.tensor(row.mask[1:]).bool()].sum())


def text_row(tokenizer: Any, text: RolloutText) -> TextRow:
    rendered = tokenizer.apply_chat_template(
        conversation(text), tools=text.tools or None, tokenize=False
    )
    spans = [match.span(1) for match in REPLY.finditer(rendered)]
    coded = tokenizer(rendered, add_special_tokens=False, return_offsets_mapping=True)
    ids, starts = coded["input_ids"], [start for start, _ in coded["offset_mapping"]]
    replies = [
        [id_ for id_, at in zip(ids, starts, strict=True) if start <= at < stop]
        for start, stop in spans
    ]
    mask = [int(any(start <= at < stop for start, stop in spans)) for at in starts]
    return TextRow(ids, mask, replies)


def conversation(text: RolloutText) -> list[dict[str, Any]]:
    """Returns the messages of a finished rollout in OpenAI's form."""
    messages: list[dict[str, Any]] = [one.model_dump() for one in text.prompt]
    for number, turn in enumerate(text.turns):
        if number and (given := turn.given) is not None:
            messages.append({"role": "tool", "content": given})
        calls = [
            {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in turn.tool_calls
        ]
        messages.append({"role": "assistant", "content": turn.text, "tool_calls": calls})
        is_last = turn is text.turns[-1]
        if turn.format_error is not None and not is_last:
            error = f"Format error: {turn.format_error}."
            messages.append({"role": "tool", "content": error})
        elif not is_last:
            messages += [{"role": "tool", "content": call.output or ""} for call in turn.tool_calls]
    return messages


LOOPS: dict[str, Any] = {"tokens": ProRLRollout, "text": TextLoop}


def learned(output: Path, loop: str, config: demo.TrainConfig) -> dict[str, Any]:
    """Trains by tokens or by text, on an engine and a service of its own. Not if it has been
    done."""
    file = output / f"{loop}-{config.seed}.json"
    if not file.exists():
        file.write_text(json.dumps(_learn(output, loop, config)) + "\n")
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def _learn(output: Path, loop: str, config: demo.TrainConfig) -> dict[str, Any]:
    model = warm_started(output / "cache", replace(WARM_STARTS["smollm2"], seed=config.seed))
    heldout = [one.task() for one in instances("heldout", HELDOUT_PER_FAMILY, seed=config.seed)]
    TextLoop.drift = drift = Drift()
    logs = {name: output / f"{loop}-{config.seed}-{name}.log" for name in ("engine", "service")}
    options = ["--max-model-len", str(CONTEXT)]
    with (
        local.engine(model, log=logs["engine"], options=options) as engine,
        local.service([engine.url], log=logs["service"]) as service,
        RolloutClient(service.url) as client,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(demo, "ProRLRollout", LOOPS[loop])
        before = evaluate(client, heldout, name="before", n=1, limits=LIMITS)
        log = demo.train(model, service.url, output / loop, config, observe=lambda _: None)
        after = evaluate(client, heldout, name="after", n=1, limits=LIMITS)
    return {
        "before": success(before),
        "after": success(after),
        "success": [one[demo.SUCCESS] for one in log],
        "turns": drift.turns,
        "changed_turns": drift.changed_turns,
        "logprob_diff_max": max(drift.logprob_diffs, default=0.0),
    }
