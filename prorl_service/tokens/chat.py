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
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from prorl_service.errors import InvalidRequest
from prorl_service.schemas import Message
from prorl_service.tokens.envelope import Envelope, learn

ToolSchema = dict[str, Any]

PATTERNS = ["tokenizer*", "chat_template*", "config.json"]
"""What is taken from the hub."""

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
    ) -> None:
        """`variables` are the template's globals, such as `bos_token`. `vocab_size` is the model's,
        which may know more ids than its tokenizer; None if nobody says.

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

    @classmethod
    def load(cls, model: str | Path) -> "ChatFormat":
        """From a model's directory, or its name on the Hugging Face hub (or in its local cache).

        Needs tokenizer.json, tokenizer_config.json and a chat template; the vocabulary's size is in
        config.json, if there is one. Raises `InvalidRequest`.
        """
        try:
            directory = _directory(model)
            config = json.loads((directory / "tokenizer_config.json").read_text())
            tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
            vocab_size = _vocab_size(directory / "config.json")
        except Exception as error:  # tokenizers raises bare Exception
            raise InvalidRequest.of_field(
                "tokenizer",
                f"cannot load a tokenizer from {model}: {error}",
                hint="name a directory with tokenizer.json and tokenizer_config.json, or a model "
                "on the hub",
            ) from error
        separate = directory / "chat_template.jinja"
        template = separate.read_text() if separate.exists() else config.get("chat_template")
        if not isinstance(template, str):
            raise InvalidRequest.of_field("tokenizer", f"{model} has no chat template")
        variables = {key: _token_text(config.get(key)) for key in ("bos_token", "eos_token")}
        return cls(tokenizer, template, variables, vocab_size)

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

        A turn that did not end itself (stopped by length) is ended here, by the first id returned.
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

    def encode(self, text: str) -> list[int]:
        """Ids of text that holds template syntax; special tokens spelt out in it count as such."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of one sampled turn, without its end-of-turn token.

        Ids that the tokenizer does not know (vocabulary padding) have no text.
        """
        if token_ids and token_ids[-1] == self.end_of_turn_id:
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
    """Raises what `huggingface_hub` raises. `HF_HUB_OFFLINE` and its other variables hold."""
    if Path(model).is_dir() or str(model).startswith(("/", ".")):
        return Path(model)
    # Comes with tokenizers. Imported late: a service with local models needs none of it.
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(str(model), allow_patterns=PATTERNS))


def _vocab_size(config: Path) -> int | None:
    """Models of more than text have it a level down."""
    if not config.exists():
        return None
    fields = json.loads(config.read_text())
    size: int | None = fields.get("text_config", fields).get("vocab_size")
    return size


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
