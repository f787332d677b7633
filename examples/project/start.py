"""Makes `model`: a tiny model that imitates the solutions of tasks.jsonl for a short time.

A model that was never shown a tool call gets reward 0 everywhere, and learns nothing. A pretrained
model that calls tools needs no such start.
"""

import asyncio
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent import LedgerAgent
from prorl_service.inference.reference_engine.tiny import build_tiny_model
from prorl_service.testing import call, play

QUESTIONS = 4
"""Rows at the start of tasks.jsonl, one for each question."""


def conversation(row: Mapping[str, Any]) -> str:
    """Returns what the model reads and says, up to its answer."""
    task = {name: row[name] for name in ("messages", "data")}
    replies = [call("ledger", find=row["solution"]), row["data"]["answer"]]
    return asyncio.run(play(LedgerAgent, task, replies)).prompts[-1]


def main() -> None:
    rows = [json.loads(line) for line in Path("tasks.jsonl").read_text().splitlines()]
    build_tiny_model(
        Path("tiny"),
        texts=[conversation(row) for row in rows[:QUESTIONS]],
        vocab_size=1024,
        initializer_range=0.02,
        use_regex=False,  # tokens as large as these texts have in common
    )
    check = ["check", "tasks.jsonl", "--agent", "agent.py:LedgerAgent", "--model", "tiny"]
    subprocess.run(["prorl", *check, "--json", "solved.jsonl"], check=True)
    extent = ["--steps", "60", "--batch-size", "16", "--learning-rate", "6e-3"]
    imitate = ["warm-start", "tiny", "solved.jsonl", "--out", "model"]
    subprocess.run(["prorl", *imitate, *extent], check=True)


if __name__ == "__main__":
    main()
