"""Makes `model`: a tiny model that imitates the solutions of tasks.jsonl for a short time.

A model that was never shown a tool call gets reward 0 everywhere, and learns nothing. A pretrained
model that calls tools needs no such start.
"""

import asyncio
import json
import subprocess
from pathlib import Path

from agent import LedgerAgent

from prorl_service.inference.reference_engine.tiny import build_tiny_model
from prorl_service.testing import play

MODEL, IMITATED = Path("tiny"), Path("solved.jsonl")


async def prompts() -> list[str]:
    """Returns what the model reads, for its tokenizer: a tiny model needs short prompts."""
    rows = [json.loads(line) for line in Path("tasks.jsonl").read_text().splitlines()]
    questions = {row["messages"][0]["content"]: row["data"] for row in rows}
    played = [
        await play(LedgerAgent, {"messages": [{"role": "user", "content": text}], "data": data}, [""])
        for text, data in questions.items()
    ]
    return [one.prompts[0] for one in played]


def main() -> None:
    texts = asyncio.run(prompts())
    build_tiny_model(MODEL, texts=texts, vocab_size=1024, initializer_range=0.02, use_regex=False)
    check = ["check", "tasks.jsonl", "--agent", "agent.py:LedgerAgent", "--json", IMITATED]
    subprocess.run(["prorl", *check, "--model", MODEL], check=True)
    extent = ["--steps", "50", "--batch-size", "16", "--learning-rate", "6e-3"]
    subprocess.run(["prorl", "warm-start", MODEL, IMITATED, "--out", "model", *extent], check=True)


if __name__ == "__main__":
    main()
