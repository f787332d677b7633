"""The files of a model that concern tokens: tokenizer, chat template, sizes and EOS tokens.

Clients and engines name models: local directories that are not models are not opened, and look as
if they did not exist. Only the files named in this module are read.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Any

from tokenizers import Tokenizer

from prorl_service.errors import InvalidRequest
from prorl_service.tokens.pictures import PAD, PictureFormat

PATTERNS = [
    *("tokenizer*", "chat_template*", "config.json", "generation_config.json"),
    *("preprocessor_config.json", "processor_config.json"),
]
"""Files that are fetched from the hub."""
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
REQUIRED = ("tokenizer.json", "tokenizer_config.json")
MAX_FILE_BYTES = 256 << 20


@dataclass(frozen=True)
class ModelFiles:
    tokenizer: Tokenizer
    template: str
    variables: dict[str, Any]
    """Globals of the template."""
    vocab_size: int | None
    eos_ids: list[int]
    pictures: PictureFormat | None = None
    """None for a model that sees no pictures."""


def load(model: str | Path) -> ModelFiles:
    """Loads from a model's directory, or by its name from the Hugging Face hub or its local cache.

    Needs tokenizer.json, tokenizer_config.json and a chat template; the vocabulary's size and EOS
    tokens are read from config.json and generation_config.json, if they exist.
    Raises `InvalidRequest`.
    """
    try:
        directory = _directory(model)
        config = dict(json.loads((directory / "tokenizer_config.json").read_text()))
        tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        vocab_size = _of_model(directory / "config.json", "vocab_size")
        eos_ids = _eos_ids(directory)
        pictures = PictureFormat.load(directory, tokenizer.token_to_id(PAD))
        separate = directory / "chat_template.jinja"
        template = separate.read_text() if separate.is_file() else config.get("chat_template")
    except Exception as error:  # tokenizers raises bare Exception
        raise InvalidRequest.of_field(
            "tokenizer",
            f"cannot load a tokenizer from {model}: {error}",
            hint="name a directory with tokenizer.json and tokenizer_config.json, or a model "
            "on the hub",
        ) from error
    if not isinstance(template, str):
        raise InvalidRequest.of_field("tokenizer", f"{model} has no chat template")
    variables = {key: _token_text(config.get(key)) for key in ("bos_token", "eos_token")}
    if (eos_id := tokenizer.token_to_id(variables["eos_token"] or "")) is not None:
        eos_ids.append(eos_id)
    return ModelFiles(tokenizer, template, variables, vocab_size, eos_ids, pictures)


def context_tokens(model: str | Path) -> int | None:
    """Returns the model's longest context by its config.json; None if that does not say. Raises
    `InvalidRequest` as `load` does."""
    load(model)
    found = _of_model(_directory(model) / "config.json", "max_position_embeddings")
    return found if isinstance(found, int) else None


def _directory(model: str | Path) -> Path:
    """Raises `ValueError`, and what `huggingface_hub` raises, which obeys `HF_HUB_OFFLINE` and its
    other variables."""
    if _is_model(Path(model)):
        return Path(model)
    if not HUB_NAME.fullmatch(str(model)):
        raise ValueError(f"there is no directory with {' and '.join(REQUIRED)}")
    # Comes with tokenizers. Imported late: a service with local models does not need it.
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(str(model), allow_patterns=PATTERNS))


def _is_model(directory: Path) -> bool:
    try:
        found = [(directory / name).stat() for name in REQUIRED]
    except (OSError, ValueError):
        return False
    return all(S_ISREG(one.st_mode) and one.st_size <= MAX_FILE_BYTES for one in found)


def _of_model(config: Path, name: str) -> Any:
    """Returns None without the file or the field. Multimodal models have fields a level down."""
    if not config.exists():
        return None
    fields = json.loads(config.read_text())
    return fields.get("text_config", fields).get(name)


def _eos_ids(directory: Path) -> list[int]:
    """Returns EOS ids as engines read them: without generation_config.json, config.json counts.

    Raises `ValueError`.
    """
    generation = directory / "generation_config.json"
    config = generation if generation.exists() else directory / "config.json"
    eos = _of_model(config, "eos_token_id")
    ids = eos if isinstance(eos, list) else [] if eos is None else [eos]
    if not all(type(id_) is int and id_ >= 0 for id_ in ids):
        raise ValueError(f"eos_token_id of {config.name} is {eos!r}, which are not token ids")
    return list(ids)


def _token_text(token: Any) -> Any:
    """Returns a token's text; tokenizer_config.json holds it as text or in an object."""
    return token["content"] if isinstance(token, dict) else token
