"""Text to ids and back for one model: its tokenizer and its chat template, by deltas.

The template is rendered once for a rollout's first prompt. Later messages are rendered alone,
behind a stand-in assistant turn, and only what follows that turn is tokenised: history is never
rendered again, so earlier ids (reasoning included) stay as they were sampled. What a template puts
around messages is learned where that can be done (`envelope`). Works for any template whose
assistant turn ends with one special token (ChatML and its kin; tested with Qwen3's).

Text inside messages cannot forge turns: special tokens spelt out in it are broken by a zero-width
space before encoding.
"""

import json
import re
from collections.abc import Collection, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from stat import S_ISREG
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from prorl_service.errors import InvalidRequest
from prorl_service.schemas import Message
from prorl_service.tokenizer_digest import tokenizer_digest
from prorl_service.tokens.envelope import Envelope, learn

ToolSchema = dict[str, Any]

PATTERNS = ["tokenizer*", "chat_template*", "config.json", "generation_config.json"]
"""What is taken from the hub."""
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
REQUIRED = ("tokenizer.json", "tokenizer_config.json")
MAX_FILE_BYTES = 256 << 20

_STAND_IN = "\x02assistant turn\x03"
"""Content of the stand-in turn. Control characters keep it apart from any template's own text."""
_BEFORE = [("user", "."), ("assistant", _STAND_IN)]
MAX_ENVELOPES = 64
"""Kept: one for each number of messages, which is that of calls in a turn."""


class ChatFormat:
    """Load with `ChatFormat.load`. Pure after that; safe to share between rollouts."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: str,
        variables: dict[str, Any],
        vocab_size: int | None = None,
        eos_ids: Collection[int] = (),
    ) -> None:
        """`variables` are the template's globals, such as `bos_token`. `vocab_size` is the model's,
        which may know more ids than its tokenizer; None if nobody says. `eos_ids` are the model's
        EOS tokens; the template's end-of-turn token need not be one.

        Raises `InvalidRequest` when the template does not end assistant turns with a special token.
        """
        self.vocab_size = vocab_size
        self._tokenizer = tokenizer
        self._template = _environment().from_string(template, globals=variables)
        added = tokenizer.get_added_tokens_decoder()
        self._special_ids = {id_ for id_, token in added.items() if token.special}
        self._special_text = re.compile(
            "|".join(re.escape(added[id_].content) for id_ in self._special_ids) or r"(?!)"
        )
        self._tells_time = "strftime_now" in template
        self._envelope = lru_cache(MAX_ENVELOPES)(self._learn_envelope)
        self.end_of_turn_id = self._find_end_of_turn()
        self.end_ids = frozenset([self.end_of_turn_id, *eos_ids])
        """Tokens that end a turn of the model."""

    @classmethod
    def load(cls, model: str | Path) -> "ChatFormat":
        """From a model's directory, or its name on the Hugging Face hub (or in its local cache).

        Needs tokenizer.json, tokenizer_config.json and a chat template; the vocabulary's size and
        EOS tokens are read from config.json and generation_config.json, if there are such.
        Raises `InvalidRequest`.
        """
        try:
            directory = _directory(model)
            config = dict(json.loads((directory / "tokenizer_config.json").read_text()))
            tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
            vocab_size = _of_model(directory / "config.json", "vocab_size")
            eos_ids = _eos_ids(directory)
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
        return cls(tokenizer, template, variables, vocab_size, eos_ids)

    def prompt_ids(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSchema] = (),
        thinking: bool | None = None,
    ) -> list[int]:
        """Ids of a whole conversation, up to where the model is to answer."""
        turns = [(message.role, self._defuse(message.content)) for message in messages]
        return self.encode(self._render(turns, tools, thinking))

    def delta_ids(
        self, messages: Sequence[Message], *, after: int, thinking: bool | None = None
    ) -> list[int]:
        """Ids to append when `messages` answer an assistant turn whose last id is `after`.

        A turn that did not end as the template ends it (but by length, or by another EOS token) is
        ended here, by the first id returned.
        """
        roles = tuple(message.role for message in messages)
        contents = [self._defuse(message.content) for message in messages]
        envelope = self._envelope(roles, thinking)
        if envelope is None:
            text = self._after_stand_in(roles, contents, thinking)
        else:
            text = envelope.around(contents)
        ids = self.encode(text)
        return ids[1:] if after == self.end_of_turn_id else ids

    def tokenizer_digest(self) -> str:
        """Takes some tenths of a second for a large vocabulary."""
        return tokenizer_digest(self._tokenizer)

    def encode(self, text: str) -> list[int]:
        """Ids of text that holds template syntax; special tokens spelt out in it count as such."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, token_ids: Sequence[int], *, stopped: bool = False) -> str:
        """Text of one sampled turn, without the token that ended it.

        `stopped`: the engine stopped at the last token. If that one is special, it is an EOS token
        of the engine's, even where no file here names it. Ids that the tokenizer does not know
        (vocabulary padding) have no text.
        """
        ends = self.end_ids | self._special_ids if stopped else self.end_ids
        if token_ids and token_ids[-1] in ends:
            token_ids = token_ids[:-1]
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def _render(
        self, turns: Sequence[tuple[str, str]], tools: Sequence[ToolSchema], thinking: bool | None
    ) -> str:
        """`turns` are roles and contents."""
        switches = {} if thinking is None else {"enable_thinking": thinking}
        try:
            return self._template.render(
                messages=[{"role": role, "content": content} for role, content in turns],
                tools=list(tools) or None,
                add_generation_prompt=True,
                **switches,
            )
        except TemplateError as error:
            raise InvalidRequest(f"the chat template refuses these messages: {error}") from error

    def _defuse(self, content: str) -> str:
        return self._special_text.sub(lambda m: m[0][0] + "\u200b" + m[0][1:], content)

    def _after_stand_in(
        self, roles: Sequence[str], contents: Sequence[str], thinking: bool | None
    ) -> str:
        turns = [*_BEFORE, *zip(roles, contents, strict=True)]
        return self._render(turns, (), thinking).partition(_STAND_IN)[2]

    def _learn_envelope(self, roles: tuple[str, ...], thinking: bool | None) -> Envelope | None:
        if self._tells_time:
            return None
        return learn(lambda contents: self._after_stand_in(roles, contents, thinking), len(roles))

    def _find_end_of_turn(self) -> int:
        ids = self.encode(self._after_stand_in(["user"], ["."], None))
        if not ids or ids[0] not in self._special_ids:
            raise InvalidRequest.of_field(
                "tokenizer",
                "the chat template does not end an assistant turn with a special token",
                hint="deltas need one; use a ChatML-like template such as Qwen3's",
            )
        return ids[0]


def _directory(model: str | Path) -> Path:
    """Clients and engines name it: other local directories than models are not opened, and look as
    if they were not there. Of either kind, only the files named in this module are read.

    Raises `ValueError`, and what `huggingface_hub` raises. `HF_HUB_OFFLINE` and its other variables
    hold.
    """
    if _is_model(Path(model)):
        return Path(model)
    if not HUB_NAME.fullmatch(str(model)):
        raise ValueError(f"there is no directory with {' and '.join(REQUIRED)}")
    # Comes with tokenizers. Imported late: a service with local models needs none of it.
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(str(model), allow_patterns=PATTERNS))


def _is_model(directory: Path) -> bool:
    try:
        found = [(directory / name).stat() for name in REQUIRED]
    except (OSError, ValueError):
        return False
    return all(S_ISREG(one.st_mode) and one.st_size <= MAX_FILE_BYTES for one in found)


def _of_model(config: Path, name: str) -> Any:
    """None without the file or the field. Models of more than text have fields a level down."""
    if not config.exists():
        return None
    fields = json.loads(config.read_text())
    return fields.get("text_config", fields).get(name)


def _eos_ids(directory: Path) -> list[int]:
    """EOS ids as engines read them: config.json counts where there is no generation_config.json.

    Raises `ValueError`.
    """
    generation = directory / "generation_config.json"
    config = generation if generation.exists() else directory / "config.json"
    eos = _of_model(config, "eos_token_id")
    ids = eos if isinstance(eos, list) else [] if eos is None else [eos]
    if not all(type(id_) is int and id_ >= 0 for id_ in ids):
        raise ValueError(f"eos_token_id of {config.name} is {eos!r}, which are no token ids")
    return list(ids)


def _environment() -> ImmutableSandboxedEnvironment:
    """Jinja as chat templates expect it: the conventions of transformers' `apply_chat_template`."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return environment


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _token_text(token: Any) -> Any:
    """tokenizer_config.json holds a token as text or as an object with its text."""
    return token["content"] if isinstance(token, dict) else token
