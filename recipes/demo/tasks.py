"""The demo's tasks: two families of small problems, each solved by one right shell command.

*add* asks for a sum; *read* asks for a number that is only in a file made for the task, so that
only a command in the sandbox can find the answer. In addition to the right command, an instance
knows plausible wrong ones and what each prints; warm-start demonstrations are made of them.

Instances are a pure function of the seed. The held-out split shares no number pair (*add*) and no
file content (*read*) with the training split. Nothing here runs a command or scores an answer.
"""

from dataclasses import dataclass, field
from itertools import combinations
from random import Random

from prorl_service.schemas import Limits, Message, Task
from recipes.common.data.splits import Split, keys_of

SYSTEM_PROMPT = "Solve the task with one bash command, then answer with its result."
FORMAT_REWARD = 0.1
LIMITS = Limits(max_turns=2, max_response_tokens=128)
CONTEXT = 512
_PAIRS = tuple(combinations(range(10, 100), 2))
_CONTENTS = range(100, 1000)


@dataclass(frozen=True, slots=True)
class Attempt:
    """A command and what it prints, without the trailing newline."""

    command: str
    output: str


@dataclass(frozen=True, slots=True)
class Instance:
    """One problem. `right` prints the answer; no output of `wrong` equals it."""

    name: str
    question: str
    right: Attempt
    wrong: tuple[Attempt, ...]
    files: dict[str, str] = field(default_factory=dict)

    @property
    def answer(self) -> str:
        return self.right.output

    def task(self) -> Task:
        """Returns the task for the service's `math` agent."""
        return Task(
            task_id=self.name,
            agent="math",
            messages=[
                Message(role="system", content=SYSTEM_PROMPT),
                Message(role="user", content=self.question),
            ],
            data={
                "answer": self.answer,
                "answer_format": "plain",
                "files": dict(self.files),
                "format_reward": FORMAT_REWARD,
            },
        )


def add(pair: tuple[int, int], rng: Random) -> Instance:
    """`pair` are two different numbers from 10 to 99; `rng` decides which comes first."""
    a, b = rng.sample(pair, 2)
    values = {"+": a + b, "-": a - b, "*": a * b, "%": a % b}
    attempts = {op: Attempt(f"echo $(({a}{op}{b}))", str(value)) for op, value in values.items()}
    return Instance(
        name=f"add-{a}-{b}",
        question=f"What is the sum of {a} and {b}?",
        right=attempts.pop("+"),
        wrong=tuple(attempts.values()),
    )


def read(content: int, rng: Random) -> Instance:
    """`content`, of at least two digits, is what the file holds; `rng` names the file."""
    name = f"f{rng.randrange(10, 100)}"
    text = f"{content}\n"
    return Instance(
        name=f"read-{name}-{content}",
        question=f"Which number is in file {name}?",
        right=Attempt(f"cat {name}", str(content)),
        wrong=(
            Attempt(f"wc -c {name}", f"{len(text)} {name}"),
            Attempt(f"head -c1 {name}", text[0]),
            Attempt(f"ls {name}", name),
        ),
        files={name: text},
    )


def instances(split: Split, per_family: int, *, seed: int) -> list[Instance]:
    """Returns `per_family` instances of each family, in turn, on distinct keys.

    Raises `ValueError` when asked for more than 180 held out, or 720 to train.
    """
    rng = Random(f"{split}/{per_family}/{seed}")
    pairs = rng.sample(keys_of(split, _PAIRS, seed=seed), per_family)
    contents = rng.sample(keys_of(split, _CONTENTS, seed=seed), per_family)
    return [
        instance
        for pair, content in zip(pairs, contents, strict=True)
        for instance in (add(pair, rng), read(content, rng))
    ]
