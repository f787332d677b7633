"""Text to ids and back for one model: its tokenizer and its chat template, by deltas.

The template is rendered once for a rollout's first prompt. Later messages are rendered alone, after
a stand-in assistant turn, and only what follows that turn is tokenised: history is never rendered
again, so earlier ids (reasoning included) stay as they were sampled. The text that a template puts
around messages is learned where possible (`template_cache`). Works for any template whose assistant
turn ends with one special token. `probe` finds out what else a template does when it is loaded, and
replies are read in the format of the model's family (`formats`).

Text inside messages cannot forge turns: special tokens spelt out in it are broken by a zero-width
space before encoding.
"""

import re
import secrets
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from prorl_service.errors import InvalidRequest
from prorl_service.schemas import Message
from prorl_service.schemas.tokenizer_digest import text_digest, tokenizer_digest
from prorl_service.tokens import message_tokens, model_files, probe
from prorl_service.tokens.formats import PLAIN, Reply, ReplyFormat, ToolCall, ToolSchema, named
from prorl_service.tokens.messages import defused, fold_systems, rendered
from prorl_service.tokens.model_files import ModelFiles
from prorl_service.tokens.pieces import Pieces
from prorl_service.tokens.template import RenderedMessage, Template
from prorl_service.tokens.template_cache import Envelope, learn

LONG_CHARS = 8192
"""Length of text from which on its encoding is worth another thread."""
_STAND_IN = f"assistant turn {secrets.token_hex(8)}"
"""Content of the stand-in turn, which no other message contains."""
MAX_ENVELOPES = 64
"""Maximum number kept: one for each number of messages, which is that of calls in a turn."""
_TAIL = 16
"""Number of last tokens of a prompt that may open reasoning."""

Shape = tuple[tuple[str, str, str], ...]
"""The parts of messages that an envelope depends on: role, tool and call id of each."""


class ChatFormat:
    """Load with `ChatFormat.load`. Pure after that; safe to share between rollouts."""

    def __init__(self, files: ModelFiles, reply_format: str | None = None) -> None:
        """`reply_format`: a name in `formats`; None: the format that the template writes.

        Raises `InvalidRequest` when the template does not end assistant turns with a special
        token, and for an unknown format.
        """
        self.vocab_size = files.vocab_size
        """Size of the model's vocabulary, which may have more ids than its tokenizer; None if
        no file says."""
        self.pictures = files.pictures
        """How the model sees pictures; None if it does not."""
        self._tokenizer = files.tokenizer
        self.template_digest = text_digest(files.template)
        self._template = Template(files.template, files.variables)
        self.pieces = Pieces(self._tokenizer)
        added = self._tokenizer.get_added_tokens_decoder()
        self._special_ids = {id_ for id_, token in added.items() if token.special}
        self._special_text = _any_of([added[id_].content for id_ in self._special_ids])
        self._envelope = lru_cache(MAX_ENVELOPES)(self._learn_envelope)
        self.end_of_turn_id = self._find_end_of_turn()
        self.end_ids = frozenset([self.end_of_turn_id, *files.eos_ids])
        """Tokens that end a turn of the model."""
        ends = [added[id_].content for id_ in self.end_ids & added.keys()]
        self._ends = _any_of(ends)
        given = None if reply_format is None else [named(reply_format)]
        self._probe = probe.ReplyProbe(self._template, self._special_text, ends)
        self.findings = self._probe.findings(given)
        self.replies: ReplyFormat = given[0] if given else self.findings.format or PLAIN
        """The format in which the model's replies are read."""
        self.problem = self.findings.problem
        if given:
            self.problem = "" if self.replies.has_calls else "replies are read without calls"
        """Reason why agents with tools cannot use the model; "" if they can."""

    @classmethod
    def load(cls, model: str | Path, reply_format: str | None = None) -> "ChatFormat":
        """Loads the format of a model by its directory or name, or that of `message_tokens`.
        Raises `InvalidRequest`."""
        is_ours = isinstance(model, str) and model.startswith(message_tokens.PREFIX)
        load = message_tokens.load if is_ours else model_files.load
        return cls(load(str(model)), reply_format)

    def prompt_ids(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSchema] = (),
        thinking: bool | None = None,
    ) -> list[int]:
        """Returns the ids of a whole conversation, up to where the model should answer.

        Raises `InvalidRequest` for messages that the template refuses, and for tools if no format
        reads the model's calls.
        """
        if tools and self.problem:
            raise InvalidRequest(
                f"this agent offers tools, which this model's chat template does not allow: "
                f"{self.problem}",
                hint="`prorl check-model` shows what the chat template does; `--reply-format` "
                "names the format of its calls; agents without tools can be used",
            )
        tools = [defused(tool, self.defuse) for tool in tools]
        text = self._template.render(self._rendered(messages), tools, thinking)
        return self.expanded(self.encode(text), messages)

    def delta_ids(
        self, messages: Sequence[Message], *, after: int, thinking: bool | None = None
    ) -> list[int]:
        """Returns ids to append when `messages` answer an assistant turn whose last id is `after`.

        If the turn did not end as the template ends it (but by length, or by another EOS token),
        the first id returned ends it.
        """
        turns = self._rendered(messages)
        shape = tuple(
            (turn["role"], turn.get("name", ""), turn.get("tool_call_id", "")) for turn in turns
        )
        contents = [turn["content"] for turn in turns]
        plain = not any("tool_calls" in turn for turn in turns)
        envelope = self._envelope(shape, thinking) if plain else None
        if envelope is None:
            text = self._after_stand_in(turns, thinking)
        else:
            text = envelope.around(contents)
        ids = self.expanded(self.encode(text), messages)
        return ids[1:] if ids[0] == after else ids

    def read(self, text: str, prompt_ids: Sequence[int], tools: Sequence[ToolSchema] = ()) -> Reply:
        """Parses a sampled turn. `text`: its decoded ids; `prompt_ids`: the ids before it."""
        tail = self._tokenizer.decode(list(prompt_ids[-_TAIL:]), skip_special_tokens=False)
        return self.replies.parse(text, tools, is_reasoning=probe.ends_in_reasoning(tail))

    def written(self, message: Message) -> str:
        """Returns what the model would sample to say an assistant's message.

        Raises `InvalidRequest` where the template does not write calls that can be read back.
        """
        text, is_reasoning = self._probe.rendered_reply(self._rendered([message])[0])
        wanted = [call.function.name for call in message.tool_calls]
        tools = [{"type": "function", "function": {"name": name}} for name in wanted]
        reply = self.replies.parse(text, tools, is_reasoning=is_reasoning)
        if wanted and [call.name for call in reply.calls] != wanted:
            raise InvalidRequest(
                f"the chat template does not write calls of {', '.join(wanted)} that can be read",
                hint="give the reply as text, in the form in which the model writes it",
            )
        return text

    def reply_ids(self, reply: str | Message) -> list[int]:
        """Returns the ids that the model would sample to say it, its end included. Raises
        `InvalidRequest` like `written`."""
        text = self.written(reply) if isinstance(reply, Message) else reply
        ids = [*self.encode(text), self.end_of_turn_id]
        end = next(place for place, id_ in enumerate(ids) if id_ in self.end_ids)
        return ids[: end + 1]

    def tokenizer_digest(self) -> str:
        """Computes the digest, in some tenths of a second for a large vocabulary."""
        return tokenizer_digest(self._tokenizer)

    def text(
        self,
        messages: Sequence[RenderedMessage],
        tools: Sequence[ToolSchema] = (),
        thinking: bool | None = None,
        *,
        generation: bool = True,
    ) -> str:
        """Returns what the template makes of messages in its own form; nothing is defused.

        Raises `InvalidRequest`.
        """
        return self._template.render(messages, tools, thinking, generation=generation)

    def next_end(self, text: str, at: int) -> int | None:
        """Returns where in a rendered text the next token is that ends a turn."""
        end = self._ends.search(text, at)
        return None if end is None else end.start()

    def encode(self, text: str) -> list[int]:
        """Encodes text with template syntax: special tokens spelt out in it count as such."""
        if len(text) < LONG_CHARS:
            return list(self._tokenizer.encode(text, add_special_tokens=False).ids)
        # Only a batch lets other threads run meanwhile.
        [encoding] = self._tokenizer.encode_batch([text], add_special_tokens=False)
        return list(encoding.ids)

    def token(self, id_: int) -> str:
        """Returns a token's text, for people."""
        return self._tokenizer.id_to_token(id_) or str(id_)

    def decode(self, token_ids: Sequence[int], *, stopped: bool = False) -> str:
        """Returns the text of one sampled turn, without the token that ended it.

        `stopped`: the engine stopped at the last token. If that one is special, it is one of the
        engine's EOS tokens, even if no file here names it. Ids that the tokenizer does not know
        (vocabulary padding) have no text.
        """
        ends = self.end_ids | self._special_ids if stopped else self.end_ids
        if token_ids and token_ids[-1] in ends:
            token_ids = token_ids[:-1]
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def _rendered(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        turns = [rendered(message, self.defuse) for message in messages]
        return fold_systems(turns, self.findings)

    def defuse(self, content: str) -> str:
        """Returns `content` with the special tokens broken that it spells out."""
        return self._special_text.sub(lambda m: m[0][0] + "\u200b" + m[0][1:], content)

    def expanded(self, ids: list[int], messages: Sequence[Message]) -> list[int]:
        """Returns ids with the pictures of these messages. Raises `InvalidRequest`."""
        contents = [one.content for message in messages for one in message.pictures]
        if not contents:
            return ids
        if self.pictures is None:
            raise InvalidRequest(
                "the messages have pictures, which this model does not see",
                hint="serve one with vision, such as Qwen2.5-VL",
            )
        return self.pictures.expanded(ids, contents)

    def _after_stand_in(self, turns: Sequence[RenderedMessage], thinking: bool | None) -> str:
        """Renders `turns`, from the end of the turn that they answer on.

        Raises `InvalidRequest`.
        """
        text = self._behind_stand_in(turns, thinking)
        end = self._ends.search(text)
        if end is None:
            raise InvalidRequest("the chat template does not end the turn before these messages")
        return text[end.start() :]

    def _behind_stand_in(self, turns: Sequence[RenderedMessage], thinking: bool | None) -> str:
        """Renders `turns` after a stand-in turn. Tool results answer calls in it, as many as the
        template takes."""
        results = [probe.as_result(turn, n) for n, turn in enumerate(_leading_results(turns))]
        turns = [*results, *turns[len(results) :]]
        calls = [
            ToolCall(result["name"], {"_": _STAND_IN}, result["tool_call_id"]) for result in results
        ]
        for count in sorted({len(calls), min(len(calls), 1)}, reverse=True):
            content = "" if count else _STAND_IN  # some templates write it after the results
            before = [probe.user("."), probe.assistant(*calls[:count], content=content)]
            try:
                text = self._template.render([*before, *turns], (), thinking)
            except InvalidRequest:
                if count <= 1:
                    raise
            else:
                return text.rpartition(_STAND_IN)[2]
        raise AssertionError

    def _learn_envelope(self, shape: Shape, thinking: bool | None) -> Envelope | None:
        if self._template.tells_time:
            return None

        def render(contents: Sequence[str]) -> str:
            turns = [_turn(*one, content) for one, content in zip(shape, contents, strict=True)]
            return self._after_stand_in(turns, thinking)

        return learn(render, len(shape))

    def _find_end_of_turn(self) -> int:
        ids = self.encode(self._behind_stand_in([probe.user(".")], None))
        if not ids or ids[0] not in self._special_ids:
            raise InvalidRequest.of_field(
                "tokenizer",
                "the chat template does not end an assistant turn with a special token",
                hint="deltas need one; use a ChatML-like template such as Qwen3's",
            )
        return ids[0]


def _any_of(texts: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, texts)) or r"(?!)")


def _leading_results(turns: Sequence[RenderedMessage]) -> Sequence[RenderedMessage]:
    count = next((n for n, turn in enumerate(turns) if turn["role"] != "tool"), len(turns))
    return turns[:count]


def _turn(role: str, name: str, call_id: str, content: str) -> RenderedMessage:
    fields = {"name": name, "tool_call_id": call_id}
    return {"role": role, "content": content} | {key: one for key, one in fields.items() if one}
