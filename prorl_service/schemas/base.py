"""The common base of all wire types. Unknown keys of requests are refused: a misspelt option is an
error, never a silent default. Those of answers are ignored: the service may be of another version.
"""

import json
from enum import StrEnum
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue

ID = r"^[A-Za-z0-9][A-Za-z0-9_.:\-]{0,199}$"
Id = Annotated[str, Field(pattern=ID)]
GroupId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:\-]{0,189}$")]
"""A shorter id, with room for the index that makes it a rollout's id."""

MAX_INT32 = 2**31 - 1
MAX_GROUP_SIZE = 4096
MAX_ROLLOUTS_PER_REQUEST = 16_384
MAX_CHECKS_PER_REQUEST = 1024
MAX_LEASE_S = 7 * 86_400.0
MAX_IDS_PER_REQUEST = 65_536
MAX_MESSAGES = 10_000


def _encodable(text: str) -> str:
    """Raises `ValueError` for lone surrogates: JSON can spell them, tokenizers and files cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("holds a lone surrogate, which is not text") from error
    return text


def encodable_json(value: dict[str, JsonValue]) -> dict[str, JsonValue]:
    _encodable(json.dumps(value, ensure_ascii=False))
    return value


Text = Annotated[str, AfterValidator(_encodable)]


class Choice(StrEnum):
    """Values that may be given with hyphens for underscores, as commands show their choices."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        return next((one for one in cls if one.replace("_", "-") == value), None)


class WireModel(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    @classmethod
    def from_answer(cls, json: str | bytes) -> Self:
        """Ignores unknown fields. Raises pydantic's `ValidationError`."""
        return cls.model_validate_json(json, extra="ignore")
