"""Questions of data sets as texts: their ids, what they ask for, the text around them."""

import hashlib
import re
from collections.abc import Mapping

from recipes.common.data.fields import Row

_PROOF = re.compile(r"\W*(?:prove|show that|explain|discuss)\b", re.I)
_PARTS = re.compile(r"(?<![\w)}])\((a|i|1)\).*(?<![\w)}])\((b|ii|2)\)", re.DOTALL)


def key(question: str) -> str:
    """Returns a digest that ignores white space: equal for the same question."""
    return hashlib.sha256(" ".join(question.split()).encode()).hexdigest()[:32]


def loose(question: str) -> str:
    """Keeps only letters and digits, case-folded: equal for a question that data sets write in
    different ways, and for some questions that differ in a sign."""
    return re.sub(r"[\W_]+", "", question).casefold()


def named(data_set: str, question: str) -> str:
    """Returns an id that is the same in all revisions of the data set."""
    return f"{data_set}-{key(question)[:16]}"


def has_parts(text: str) -> bool:
    return _PARTS.search(text) is not None


def check_asked(row: Row, question: str) -> None:
    """Raises `RowError` if the question asks for a text instead of an answer."""
    if _PROOF.match(question):
        raise row.error("it asks for a proof or a text", question[:80])


def user_message(row: Row) -> str:
    """Returns the last user message of `prompt`, a list of messages."""
    messages = row.json("prompt")
    if isinstance(messages, list):
        for message in reversed(messages):
            if isinstance(message, Mapping) and message.get("role") == "user":
                return Row(message, f"{row.where}, prompt").text("content")
    raise row.error("prompt has no user message")
