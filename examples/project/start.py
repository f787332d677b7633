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
from prorl_service.testing import play

QUESTIONS = 4
"""Rows at the start of tasks.jsonl, one for each question."""


def prompt(row: Mapping[str, Any]) -> str:
    """Returns what the model reads."""
    task = {name: row[name] for name in ("messages", "data")}
    return asyncio.run(play(LedgerAgent, task, ["nothing"])).prompts[0]


def main() -> None:
    rows = [json.loads(line) for line in Path("tasks.jsonl").read_text().splitlines()]
    build_tiny_model(
        Path("tiny"),
        texts=[prompt(row) for row in rows[:QUESTIONS]],
        vocab_size=1024,
        initializer_range=0.02,
        use_regex=False,  # a prompt is a few tokens
    )
    check = ["check", "tasks.jsonl", "--agent", "agent.py:LedgerAgent", "--model", "tiny"]
    subprocess.run(["prorl", *check, "--json", "solved.jsonl"], check=True)
    extent = ["--steps", "50", "--batch-size", "16", "--learning-rate", "6e-3"]
    imitate = ["warm-start", "tiny", "solved.jsonl", "--out", "model"]
    subprocess.run(["prorl", *imitate, *extent], check=True)


if __name__ == "__main__":
    main()
