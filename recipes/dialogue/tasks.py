"""Dialogues about orders in a shop: three wishes, and one rule that forbids what is wished for.

The user says what it wants, but not which order it is about; whether the rule allows it is in the
order's record. So a policy has to ask, to look up, and to act or to refuse. The end is checked by
code: the records must be as they should be. In addition to the right act, an instance knows the
wrong ones; warm-start demonstrations are made of them.

Instances are a pure function of the seed. The held-out split shares no order number with the
training split. Nothing here talks to a model.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import cycle
from random import Random
from typing import Any, Literal

from prorl_service.schemas import Limits, Message, Task
from recipes.common.data.splits import Split, keys_of

RULES = "Serve the users of a shop. Never change or remove an order that was sent."
PERSONA = "A customer of a shop, in a hurry."
ITEMS = ("tea", "milk", "rice", "soap", "salt", "corn")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
NUMBERS = range(100, 1000)
SENT_SHARE = 0.25
"""Share of orders that allow nothing: no act is right more often than any other."""
LIMITS = Limits(max_turns=4, max_response_tokens=160)
CONTEXT = 512

Family = Literal["item", "day", "cancel"]
FAMILIES: tuple[Family, ...] = ("item", "day", "cancel")


@dataclass(frozen=True, slots=True)
class Act:
    """What a policy does once it knows the order. `tool`: None refuses."""

    tool: str | None
    fields: Mapping[str, str]
    output: str
    """The tool's answer."""
    words: str
    """Last words to the user."""


REFUSE = Act(None, {}, "", "Sorry, it was sent.")
REMOVE = Act("remove", {}, "Removed.", "Done.")


def change(field: str, value: str) -> Act:
    return Act("change", {"field": field, "value": value}, "Changed.", "Done.")


@dataclass(frozen=True, slots=True)
class Instance:
    """One dialogue. Only the `right` act leaves the records as they should be. The first of the
    wrong ones is the usual mistake: each wish has its own, and so has each state of the order, so
    that an imitator has to tell them apart."""

    number: int
    family: Family
    wish: str
    order: Mapping[str, str]
    right: Act
    wrong: tuple[Act, ...]

    @property
    def name(self) -> str:
        return f"{self.family}-{self.order['state']}-{self.number}"

    @property
    def call(self) -> dict[str, str]:
        """Arguments that name the order."""
        return {"table": "orders", "id": str(self.number)}

    @property
    def shown(self) -> str:
        """The order as `look_up` shows it."""
        return json.dumps(dict(self.order))

    def task(self) -> Task:
        """Returns the task for the service's `dialogue` agent."""
        return Task(
            task_id=self.name,
            agent="dialogue",
            messages=[
                Message(role="system", content=RULES),
                Message(role="user", content=self.wish),
            ],
            data=self._data(),
        )

    def _data(self) -> dict[str, Any]:
        changes: dict[str, Any] = {
            "change": {str(self.number): {self.right.fields.get("field"): self._value}},
            "remove": {str(self.number): None},
        }
        wanted = changes.get(self.right.tool or "")
        return {
            "user": {
                "persona": PERSONA,
                "goal": f"{self.wish} The number of your order is {self.number}.",
            },
            "records": {"orders": {str(self.number): dict(self.order)}},
            "changes": {} if wanted is None else {"orders": wanted},
            "max_user_messages": LIMITS.max_turns,
        }

    @property
    def _value(self) -> str | None:
        return self.right.fields.get("value")


def instance(family: Family, number: int, rng: Random) -> Instance:
    """`rng` decides on the order and on the wish."""
    item, other = rng.sample(ITEMS, 2)
    day, later = rng.sample(DAYS, 2)
    state = "sent" if rng.random() < SENT_SHARE else "open"
    wishes = {
        "item": f"I want {other} instead of {item}.",
        "day": f"Please bring it on {later}.",
        "cancel": "I do not want it any more.",
    }
    acts = [change("item", other), change("day", later), REMOVE, REFUSE]
    wished = FAMILIES.index(family)
    right, mistake = (wished, wished + 1) if state == "open" else (3, wished)
    order = {"item": item, "day": day, "state": state}
    wrong = [acts[mistake], *(act for n, act in enumerate(acts) if n not in (right, mistake))]
    return Instance(number, family, wishes[family], order, acts[right], tuple(wrong))


def instances(split: Split, count: int, *, seed: int) -> list[Instance]:
    """Returns instances on distinct orders; the families take turns. Raises `ValueError` when asked
    for more than 180 held out, or 720 to train."""
    rng = Random(f"{split}/{count}/{seed}")
    numbers = rng.sample(keys_of(split, NUMBERS, seed=seed), count)
    return [instance(*one, rng) for one in zip(cycle(FAMILIES), numbers, strict=False)]
