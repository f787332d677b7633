"""Questions of data sets as texts: what names them, what they ask for, what was put around them."""

import hashlib
import re
from collections.abc import Mapping

from recipes.common.data.fields import Row

_PROOF = re.compile(r"\W*(?:prove|show that|explain|discuss)\b", re.I)
_PARTS = re.compile(r"(?<![\w)}])\((a|i|1)\).*(?<![\w)}])\((b|ii|2)\)", re.DOTALL)


def key(question: str) -> str:
    """Two questions are the same if this is: a digest, without regard to white space."""
    return hashlib.sha256(" ".join(question.split()).encode()).hexdigest()[:32]


def loose(question: str) -> str:
    """Without all but letters and digits, and without case: the same question though another data
    set writes it in another way, and some that differ in a sign."""
    return re.sub(r"[\W_]+", "", question).casefold()


def named(data_set: str, question: str) -> str:
    """An id that is the same in all revisions of the data set."""
    return f"{data_set}-{key(question)[:16]}"


def has_parts(text: str) -> bool:
    return _PARTS.search(text) is not None


def check_asked(row: Row, question: str) -> None:
    """Raises `RowError` where what is wanted is no answer but a text."""
    if _PROOF.match(question):
        raise row.error("it asks for a proof or a text", question[:80])


def user_message(row: Row) -> str:
    """The last one of `prompt`, a list of messages."""
    messages = row.json("prompt")
    if isinstance(messages, list):
        for message in reversed(messages):
            if isinstance(message, Mapping) and message.get("role") == "user":
                return Row(message, f"{row.where}, prompt").text("content")
    raise row.error("prompt has no message of the user")
