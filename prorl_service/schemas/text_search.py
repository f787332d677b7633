"""What a search for text in rollouts takes and returns."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from prorl_service.schemas.base import WireModel


def words_of(text: str) -> list[str]:
    """Returns the words of a text as a search sees them: letters and digits in a row."""
    return re.findall(r"[^\W_]+", text)


def _with_words(text: str) -> str:
    if not words_of(text):
        raise ValueError("a text to search for needs a letter or a digit")
    return text


SearchText = Annotated[str, Field(max_length=500), AfterValidator(_with_words)]


class Excerpt(WireModel):
    """Where a text was found, and the text around it."""

    place: str = Field(description="Such as `prompt`, `turn 3`, `turn 3, output of bash`, `error`.")
    before: str
    match: str
    after: str
