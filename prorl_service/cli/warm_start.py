"""`prorl warm-start`: a model imitates rollouts, so that its first own ones are well formed."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from cyclopts.types import PositiveFloat, PositiveInt

from prorl_service.client.trainable import trained_segments
from prorl_service.errors import ProRLError
from prorl_service.exports.sources import records
from prorl_service.schemas import Segment
from prorl_service.tokens.chat import ChatFormat


def warm_start(
    model: Path,
    sources: list[str],
    /,
    *,
    out: Path,
    min_reward: float | None = None,
    steps: PositiveInt = 24,
    batch_size: PositiveInt = 8,
    learning_rate: PositiveFloat = 2e-4,
    seed: int = 0,
) -> None:
    """Have a model imitate rollouts, before you train it by reinforcement learning.

    Parameters
    ----------
    model
        Directory of a transformers causal LM.
    sources
        Rollouts in its tokens: JSONL files such as those of `prorl try --tokenizer MODEL --json`,
        directories of them, journals, services by address.
    out
        New directory for the trained model.
    min_reward
        Least reward of imitated rollouts.
    steps
        Batches of rollouts to learn from.
    batch_size
        Rollouts of a batch.
    learning_rate
        2e-4 suits a pretrained model of 100 million parameters, 6e-3 a tiny one.
    seed
        Seed of the order of rollouts.
    """
    if out.exists():
        raise ProRLError(f"{out} is there already", hint="name a new directory")
    segments = [
        segment
        for record in records(sources)
        if min_reward is None or (record.rollout.reward or 0.0) >= min_reward
        for segment in trained_segments(record.rollout)
    ]
    if not segments:
        raise ProRLError(
            f"there is nothing to imitate in {', '.join(sources)}",
            hint="rollouts that failed are left out, and those below --min-reward",
        )
    chat = ChatFormat.load(model)
    if any(chat.encode(chat.decode(one.prompt_ids)) != one.prompt_ids for one in segments):
        raise ProRLError(
            f"the rollouts are not in the tokens of {model}",
            hint=f"make them so: prorl try --replies FILE --tokenizer {model} --json ROLLOUTS ...",
        )
    _train(model, segments, out, steps, batch_size, learning_rate, seed)
    print(f"{out} imitates {len(segments)} segments: prorl engine --model {out}")


def _train(
    model: Path,
    segments: Sequence[Segment],
    out: Path,
    steps: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
) -> None:
    try:
        import torch
        from transformers import AutoModelForCausalLM

        from prorl_service.inference.reference_engine.imitation import Imitation, imitate
    except ImportError as error:
        raise ProRLError(
            f"torch and transformers are not installed: {error}",
            hint="pip install 'prorl-service[engine]'",
        ) from error
    try:
        policy = AutoModelForCausalLM.from_pretrained(
            model, dtype=torch.float32, local_files_only=True
        )
    except (OSError, ValueError) as error:
        raise ProRLError(f"cannot load {model}: {str(error).splitlines()[0]}") from error
    config = Imitation(steps=steps, batch_size=batch_size, learning_rate=learning_rate, seed=seed)
    imitate(policy, segments, config)
    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=out.parent) as scratch:
        made = Path(scratch) / "model"
        shutil.copytree(model, made, ignore=shutil.ignore_patterns("*.safetensors*", "*.bin*"))
        policy.save_pretrained(made)
        os.rename(made, out)
