import re
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from jinja2 import Template, TemplateError

from prorl_service.schemas import Message
from prorl_service.tokens.chat import ChatFormat
from prorl_service.tokens.model_files import ModelFiles
from prorl_service.tokens.template import environment
from prorl_service.tokens.template_cache import learn

TEMPLATES = Path(str(resources.files("trl").joinpath("chat_templates")))
FOR_TRAINING = re.compile(r"{%-? *generation")
"""A tag that only transformers' own Jinja knows."""
OTHER_FIELDS = {"llama3", "llava_next"}
"""Templates that need other fields of messages than these tests have."""
NAMES = sorted(
    {path.stem for path in TEMPLATES.glob("*.jinja") if not FOR_TRAINING.search(path.read_text())}
    - OTHER_FIELDS
)
WORDS = ["<tool_response>", "</tool_response>", "<think>", "</think>", "```", "null", "{}", "[1]"]
texts = st.one_of(
    st.text(max_size=8),
    st.lists(st.sampled_from([*WORDS, " ", "\n", "a"]), max_size=6).map("".join),
)

Render = Callable[[Sequence[str]], str]


@cache
def compiled(name: str) -> Template:
    return environment().from_string((TEMPLATES / f"{name}.jinja").read_text())


def renderer(template: Template, role: str, thinking: bool | None = None) -> Render:
    switches = {} if thinking is None else {"enable_thinking": thinking}

    def render(contents: Sequence[str]) -> str:
        messages = [{"role": role, "content": content} for content in contents]
        before = [{"role": "user", "content": "."}, {"role": "assistant", "content": "!"}]
        return template.render(
            messages=[*before, *messages], add_generation_prompt=True, **switches
        )

    return render


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=20, suppress_health_check=[*HealthCheck])
@given(
    role=st.sampled_from(["tool", "user"]),
    contents=st.lists(texts, min_size=1, max_size=3),
    thinking=st.sampled_from([None, False]),
)
def test_a_learned_envelope_equals_what_the_template_renders(
    name: str, role: str, contents: list[str], thinking: bool | None
) -> None:
    render = renderer(compiled(name), role, thinking)
    try:
        rendered = render(contents)
        envelope = learn(render, len(contents))
    except TemplateError:  # it needs other fields, or lacks the role
        assume(False)
    assert envelope is None or envelope.around(contents) == rendered


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "qwen3_instruct_2507"])
def test_the_envelope_of_tool_answers_is_learned(name: str) -> None:
    assert learn(renderer(compiled(name), "tool"), 2) is not None


@pytest.mark.parametrize(
    "content",
    [
        "{{ m.content | trim }}",
        "{{ m.content | tojson }}",
        "{{ m.content | e }}",
        "{{ m.content | upper }}",
        "{{ m.content | int }}",
        "{{ m.content ~ m.content }}",
        "{{ m.content[:9] }}",
        "{{ m.content if 'x' in m.content }}",
        "{{ m.content if m.content | length < 90 else '...' }}",
        "{{ 'nothing' if m.content == 'x' else m.content }}",
        "{{ m.content if ('a' + m.content).startswith('ab') else m.content }}",
        "{% for part in m.content %}{{ part }}{% endfor %}",
        "{{ 'a list' if m.content is sequence else m.content }}",
        "{{ m.content or 'nothing' }}",
    ],
)
def test_a_template_that_inspects_contents_is_not_learned(content: str) -> None:
    template = "{% for m in messages %}" + content + "<|im_end|>{% endfor %}"
    render = renderer(environment().from_string(template), "tool")
    assert learn(render, 1) is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(contents=st.lists(texts, min_size=1, max_size=3))
def test_deltas_equal_those_of_a_rendering(chat: ChatFormat, contents: list[str]) -> None:
    turns = [{"role": "tool", "content": content} for content in contents]
    rendered = chat._after_stand_in(turns, None)
    messages = [Message(role="tool", content=content) for content in contents]
    assert chat.delta_ids(messages, after=0) == chat.encode(rendered)


def test_a_template_that_tells_the_time_is_rendered_each_time(tiny_model: Path) -> None:
    model = ChatFormat.load(tiny_model)
    template = (tiny_model / "chat_template.jinja").read_text() + "{{ strftime_now('%f') }}"
    chat = ChatFormat(ModelFiles(model._tokenizer, template, {}, None, []))
    messages = [Message(role="tool", content="")]
    assert len({tuple(chat.delta_ids(messages, after=0)) for _ in range(9)}) > 1
