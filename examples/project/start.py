"""Makes `model`: a tiny model that imitates the solutions of tasks.jsonl for a short time.

A model that was never shown a tool call gets reward 0 everywhere, and learns nothing. A pretrained
model that calls tools needs no such start.
"""

import asyncio
import json
import subprocess
from pathlib import Path

from agent import LedgerAgent as Agent
from prorl_service.inference.reference_engine.tiny import build_tiny_model
from prorl_service.schemas import Task
from prorl_service.testing import play


def conversation(line: str) -> str:
    """Returns what the model reads and says, up to its answer."""
    row = json.loads(line)
    solution = row.pop("solution")
    task = Task.model_validate(row)
    return asyncio.run(play(Agent, task, Agent(task).solved_by(solution))).prompts[-1]


def main() -> None:
    lines = Path("tasks.jsonl").read_text().splitlines()
    build_tiny_model(
        Path("tiny"),
        texts=[conversation(line) for line in lines[:16]],
        vocab_size=1024,
        initializer_range=0.02,
        use_regex=False,  # tokens as large as these texts have in common
    )
    check = ["check", "tasks.jsonl", "--agent", f"agent.py:{Agent.__name__}", "--model", "tiny"]
    subprocess.run(["prorl", *check, "--json", "solved.jsonl"], check=True)
    extent = ["--steps", "54", "--batch-size", "16", "--learning-rate", "6e-3"]
    imitate = ["warm-start", "tiny", "solved.jsonl", "--out", "model"]
    subprocess.run(["prorl", *imitate, *extent], check=True)


if __name__ == "__main__":
    main()
