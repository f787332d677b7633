from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import Qwen3ForCausalLM

from prorl_service.schemas import Message
from prorl_service.tokens.chat import ChatFormat
from prorl_service.tokens.formats import HERMES
from recipes.demo.demonstrations import Demonstration, demonstrations
from recipes.demo.tasks import Attempt, Instance, instances
from recipes.demo.warm_start import WarmStart, warm_started

SHORT = WarmStart(demonstrations=1000, steps=150)
"""Training that suffices for syntax but not yet for faultless copying."""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def directory(cache: Path) -> Path:
    return warm_started(cache, SHORT)


def test_demonstrations_are_mostly_wrong_and_never_held_out() -> None:
    examples = demonstrations(2000, seed=0)
    right = [example for example in examples if example.attempt is example.instance.right]
    assert 0.1 < len(right) / len(examples) < 0.2
    heldout = {instance.name for instance in instances("heldout", 180, seed=0)}
    assert not heldout & {example.instance.name for example in examples}


@pytest.mark.slow
def test_the_same_warm_start_is_trained_once(directory: Path, cache: Path) -> None:
    weights = directory / "model.safetensors"
    made_at = weights.stat().st_mtime_ns
    assert warm_started(cache, SHORT) == directory
    assert weights.stat().st_mtime_ns == made_at
    assert [entry.name for entry in cache.iterdir()] == [directory.name]


@pytest.mark.slow
def test_the_policy_knows_the_syntax_but_not_the_answer(directory: Path) -> None:
    policy = Qwen3ForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    tried = instances("heldout", 50, seed=SHORT.seed)
    attempts = roll_out(policy, ChatFormat.load(directory), tried)
    known = [attempt is not None for attempt, _ in attempts]
    copied = [attempt is not None and attempt.output == answer for attempt, answer in attempts]
    right = [answer == one.answer for one, (_, answer) in zip(tried, attempts, strict=True)]
    assert sum(known) > 70
    assert sum(copied) > 50
    assert sum(right) < 40


def roll_out(
    policy: Qwen3ForCausalLM, chat: ChatFormat, tried: Sequence[Instance]
) -> list[tuple[Attempt | None, str]]:
    """Returns each instance's attempt (None for a command of unknown output) and answer."""
    torch.manual_seed(0)
    prompts = [Demonstration(one, one.right).transcript().segment(chat).prompt_ids for one in tried]
    calls = sample(policy, chat, prompts)
    attempts = [chosen(one, chat.decode(call)) for one, call in zip(tried, calls, strict=True)]
    continued = [
        prompt + call + chat.delta_ids([said(attempt)], after=call[-1])
        for prompt, call, attempt in zip(prompts, calls, attempts, strict=True)
    ]
    answers = map(chat.decode, sample(policy, chat, continued))
    return list(zip(attempts, answers, strict=True))


def chosen(instance: Instance, text: str) -> Attempt | None:
    command = next((call.arguments.get("command") for call in HERMES.parse(text).calls), None)
    attempts = {attempt.command: attempt for attempt in (instance.right, *instance.wrong)}
    return attempts.get(str(command))


def said(attempt: Attempt | None) -> Message:
    return Message(role="tool", content=attempt.output if attempt else "?")


def sample(
    policy: Qwen3ForCausalLM, chat: ChatFormat, prompts: Sequence[list[int]]
) -> list[list[int]]:
    """Samples one turn for each prompt, at temperature 1, up to the end-of-turn id."""
    length = max(map(len, prompts))
    padded = torch.tensor([[0] * (length - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (length - len(p)) + [1] * len(p) for p in prompts])
    generated = policy.generate(padded, attention_mask=mask, do_sample=True, max_new_tokens=24)
    rows = generated[:, length:].tolist()
    end = chat.end_of_turn_id
    return [row[: row.index(end) + 1] if end in row else row for row in rows]
