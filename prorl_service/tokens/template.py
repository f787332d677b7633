"""A model's chat template: messages to text. Knows nothing of ids.

Jinja is set up as in `transformers.PreTrainedTokenizerBase.apply_chat_template`, which templates
are written for.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from prorl_service.errors import InvalidRequest
from prorl_service.tokens.formats import ToolSchema

RenderedMessage = Mapping[str, Any]
"""A message as templates take it: OpenAI's form, with the arguments of calls as an object."""


class Template:
    def __init__(self, source: str, variables: Mapping[str, Any]) -> None:
        """`variables` are the template's globals, such as `bos_token`.

        Raises `InvalidRequest` for an invalid template.
        """
        try:
            self._template = environment().from_string(source, globals=dict(variables))
        except TemplateError as error:
            raise InvalidRequest.of_field(
                "tokenizer", f"the chat template is invalid: {error}"
            ) from error
        self.source = source
        self.tells_time = "strftime_now" in source
        self.arguments_as_text = False
        """True if the template takes the arguments of calls as JSON text, not as an object."""

    def render(
        self,
        messages: Sequence[RenderedMessage],
        tools: Sequence[ToolSchema] = (),
        thinking: bool | None = None,
        *,
        generation: bool = True,
    ) -> str:
        """Renders messages. `generation`: up to where the model should answer.

        Raises `InvalidRequest` if the template refuses the messages.
        """
        switches = {} if thinking is None else {"enable_thinking": thinking}
        if self.arguments_as_text:
            messages = [_with_text(message) for message in messages]
        try:
            return self._template.render(
                messages=messages,
                tools=list(tools) or None,
                add_generation_prompt=generation,
                **switches,
            )
        # A template that expects other types fails with Python's own errors.
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise InvalidRequest(f"the chat template refuses these messages: {error}") from error


class _GenerationTag(Extension):
    """`{% generation %}`, which marks what the assistant said, for training on text; here it is
    just its content."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def environment() -> ImmutableSandboxedEnvironment:
    """Returns the environment that chat templates are written for."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _with_text(message: RenderedMessage) -> RenderedMessage:
    """Returns the message with the arguments of its calls as JSON text."""
    if "tool_calls" not in message:
        return message
    calls = [
        {**call, "function": {**call["function"], "arguments": _to_json(_arguments(call))}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def _arguments(call: Mapping[str, Any]) -> Any:
    return call["function"]["arguments"]
