"""Answers with labels, made by code, and a small judge that has seen such.

An answer tells some facts of a day; a criterion asks whether it tells one. The judge is SmolLM2,
which imitates verdicts on answers of other names, prices and places than those to be judged. What
`prorl judge` says of it, behind vLLM's chat route, is the figure.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from bench import frame
from prorl_service.agents.base import Prompt
from prorl_service.inference.reference_engine.imitation import Imitation
from prorl_service.rewards.judge import rubric
from prorl_service.rewards.judge.judge import PROMPTS
from prorl_service.rewards.judge.rubric import Criterion
from prorl_service.schemas import Message
from recipes.common.training import imitation
from recipes.common.training.imitation import Transcript
from recipes.smollm import model as smollm
from tests import vllm_engine

QUESTION = "What happened that day?"
FACTS = {
    "It says who paid.": ("{} paid.", "The one who paid was {}.", "Ann Ben Cem Dora Egon Fay"),
    "It names a price.": ("It cost {} dollars.", "The price: {} dollars.", "3 5 8 12 40 75"),
    "It names a city.": ("They met in {}.", "{} was where.", "Oslo Lima Rome Bern Kyiv Riga"),
    "It names a colour.": ("The box was {}.", "A {} box.", "red blue green black white grey"),
    "It names an animal.": ("A {} slept there.", "They saw a {}.", "cat dog horse duck goat crow"),
    "It tells the weather.": ("The day was {}.", "It was {}.", "hot cold wet dry mild foggy"),
}
"""Two forms of each fact, and what stands in them: the first half in training alone."""
TOLD, ASKED = 3, 3
CACHE = Path("outputs/demo/cache").absolute()
TRAINED_ON, HELDOUT = 1000, 100
EXTENT = Imitation(steps=30, batch_size=4, learning_rate=3e-4)
CONTEXT = 6144
VLLM = (
    *("--dtype", "float32", "--enforce-eager", "--no-enable-chunked-prefill"),
    *("--max-model-len", str(CONTEXT), "--block-size", "32"),
    *("--kv-cache-memory-bytes", str(2**31)),
)


def labelled(split: str, count: int) -> Iterator[dict[str, Any]]:
    """Yields rows as `prorl judge` reads them."""
    rng = Random(split)
    for _ in range(count):
        told = rng.sample([*FACTS], TOLD)
        asked = rng.sample([*FACTS], ASKED)
        yield {
            "question": QUESTION,
            "answer": " ".join(_sentence(fact, split, rng) for fact in told),
            "rubric": [{"criterion": fact} for fact in asked],
            "labels": [fact in told for fact in asked],
        }


def _sentence(fact: str, split: str, rng: Random) -> str:
    *forms, words = FACTS[fact]
    values = words.split()
    half = len(values) // 2
    return rng.choice(forms).format(
        rng.choice(values[:half] if split == "train" else values[half:])
    )


def judge(cache: Path) -> Path:
    """Returns the directory of the judge's model."""
    rng = Random("codes")
    shown = [
        _transcript(row, f"{rng.getrandbits(64):016x}") for row in labelled("train", TRAINED_ON)
    ]
    return imitation.warm_started(cache, shown, EXTENT, smollm.cached())


def _transcript(row: dict[str, Any], code: str) -> Transcript:
    criteria = [Criterion.model_validate(one) for one in row["rubric"]]
    quoted = PROMPTS["quoted_rubric"].format(
        code=code,
        question=row["question"],
        reference="",
        criteria=rubric.numbered(criteria),
        answer=row["answer"],
    )
    messages = [
        Message(role="system", content=PROMPTS["rubric"].format(code=code)),
        Message(role="user", content=quoted),
    ]
    said = [
        f"CRITERION {number}: {'MET' if is_met else 'NOT MET'}"
        for number, is_met in enumerate(row["labels"], 1)
    ]
    return Transcript(Prompt(messages), ["\n".join(said)], [])


def agreement(model: Path, count: int) -> frame.Row:
    """Returns what `prorl judge` says of a model behind vLLM's chat route."""
    with TemporaryDirectory(prefix="prorl-bench-") as name:
        rows, log = Path(name) / "labelled.jsonl", Path(name) / "vllm.log"
        rows.write_text("".join(f"{json.dumps(one)}\n" for one in labelled("heldout", count)))
        with vllm_engine.vllm(vllm_engine.PYTHON, model, log=log, options=VLLM) as engine:
            options = ["--judge-url", f"{engine.url}/v1", "--judge-model", str(model), "--json"]
            command = [sys.executable, "-m", "prorl_service.cli", "judge", str(rows), *options]
            done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    found: frame.Row = json.loads(done.stdout)
    counts = {key: found[key] for key in ("answers", "failed", "calls")}
    agreed: frame.Row = found["judges"].get(str(model), {})
    return counts | agreed


def measure_rubric(quick: bool) -> frame.Found | None:
    if not vllm_engine.PYTHON.exists():
        return None
    base, few = smollm.cached(), HELDOUT // 5
    judges = {"SmolLM2": (base, few), "after 30 batches": (judge(CACHE), HELDOUT)}
    rows = [
        {"judge": name, **agreement(model, few if quick else count)}
        for name, (model, count) in judges.items()
    ]
    headline = {
        "rubric_agreement": round(rows[-1]["accuracy"], 3),
        "rubric_kappa": round(rows[-1]["kappa"], 3) + 0.0,  # no -0.0
    }
    return frame.Found(rows, headline)
