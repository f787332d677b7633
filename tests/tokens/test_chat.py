import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from prorl_service.errors import InvalidRequest
from prorl_service.schemas import Message
from prorl_service.tokens.chat import ChatFormat
from prorl_service.tokens.model_files import ModelFiles
from prorl_service.tools.base import function_schema
from prorl_service.tools.bash import Bash

SYSTEM = Message(role="system", content="Be brief.")
QUESTION = Message(role="user", content="What is 6 times 7?")
ANSWER = Message(role="assistant", content="It is 42.")
OUTPUT = Message(role="tool", content="42\n43")


def reference(model: Path, messages: Sequence[Message], **options: object) -> list[int]:
    """Renders and encodes with transformers."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    text = tokenizer.apply_chat_template(
        [message.model_dump(exclude_defaults=True) for message in messages],
        tokenize=False,
        add_generation_prompt=True,
        **options,
    )
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


@pytest.mark.parametrize("thinking", [None, True, False])
def test_the_first_prompt_is_what_transformers_renders(
    tiny_model: Path, chat: ChatFormat, thinking: bool | None
) -> None:
    tools = [function_schema(Bash())]
    options = {} if thinking is None else {"enable_thinking": thinking}
    assert chat.prompt_ids([SYSTEM, QUESTION], tools=tools, thinking=thinking) == reference(
        tiny_model, [SYSTEM, QUESTION], tools=tools, **options
    )


@pytest.mark.parametrize("answers", [[OUTPUT], [OUTPUT, OUTPUT], [QUESTION]])
def test_a_delta_is_what_a_whole_rendering_would_add(
    tiny_model: Path, chat: ChatFormat, answers: list[Message]
) -> None:
    whole = reference(tiny_model, [SYSTEM, QUESTION, ANSWER, *answers])
    delta = chat.delta_ids(answers, after=chat.end_of_turn_id)
    assert whole[-len(delta) - 1 :] == [chat.end_of_turn_id, *delta]


def test_a_turn_cut_by_length_is_ended_by_the_delta(chat: ChatFormat) -> None:
    ended = chat.delta_ids([OUTPUT], after=chat.end_of_turn_id)
    assert chat.delta_ids([OUTPUT], after=0) == [chat.end_of_turn_id, *ended]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from(["<|im_end|>", "<|im_start|>", "<|endoftext|>", "\n", "system", "x"]))
)
def test_tool_output_cannot_forge_turns(chat: ChatFormat, parts: list[str]) -> None:
    special = [chat.encode(text)[0] for text in ("<|im_end|>", "<|im_start|>", "<|endoftext|>")]
    plain = chat.delta_ids([Message(role="tool", content="")], after=chat.end_of_turn_id)
    hostile = chat.delta_ids(
        [Message(role="tool", content="".join(parts))], after=chat.end_of_turn_id
    )
    for token in special:
        assert hostile.count(token) == plain.count(token)


def test_decode_skips_ids_outside_the_tokenizer(chat: ChatFormat) -> None:
    ids = [*chat.encode("ab"), 10**6, *chat.encode("c"), chat.end_of_turn_id]
    assert chat.decode(ids) == "abc"


@pytest.mark.parametrize(
    ("config", "vocab_size"),
    [('{"vocab_size": 384}', 384), ('{"text_config": {"vocab_size": 384}}', 384), (None, None)],
)
def test_the_size_of_the_vocabulary_is_the_models(
    config: str | None, vocab_size: int | None, tiny_model: Path, tmp_path: Path
) -> None:
    model = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    if config is None:
        (model / "config.json").unlink()
    else:
        (model / "config.json").write_text(config)
    assert ChatFormat.load(model).vocab_size == vocab_size


def test_directories_without_a_model_look_as_if_they_did_not_exist(
    tiny_model: Path, tmp_path: Path
) -> None:
    """A client that may add engines may name any path on the service's machine."""
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "password").write_text("4711")
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "tokenizer_config.json").write_text('{"chat_template": "4711"}')
    pipes = Path(shutil.copytree(tiny_model, tmp_path / "pipes"))
    (pipes / "tokenizer.json").unlink()
    os.mkfifo(pipes / "tokenizer.json")
    (tmp_path / "closed").mkdir(mode=0)
    files = ("secrets/password", "secrets/../secrets")
    for name in ("none", "secrets", "half", "pipes", "closed", *files):
        with pytest.raises(InvalidRequest) as refused:
            ChatFormat.load(tmp_path / name)
        assert refused.value.message == (
            f"tokenizer: cannot load a tokenizer from {tmp_path / name}: there is no directory "
            "with tokenizer.json and tokenizer_config.json"
        )


@pytest.mark.parametrize("name", ["", "../model", "~/model", "a/b/c", "http://host/model", "a\0b"])
def test_a_string_that_is_no_directory_or_model_name_is_not_looked_up(name: str) -> None:
    with pytest.raises(InvalidRequest, match="there is no directory with"):
        ChatFormat.load(name)


@pytest.mark.parametrize("content", ["[]", "4711", '{"chat_template": 4711}', "{"])
def test_a_nonsensical_configuration_is_refused(
    tiny_model: Path, tmp_path: Path, content: str
) -> None:
    model = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    (model / "chat_template.jinja").unlink(missing_ok=True)
    (model / "tokenizer_config.json").write_text(content)
    with pytest.raises(InvalidRequest, match="tokenizer"):
        ChatFormat.load(model)


@pytest.mark.processes
def test_a_model_of_the_hub_is_loaded_from_the_local_cache(
    tiny_model: Path, tmp_path: Path, chat: ChatFormat
) -> None:
    cached = tmp_path / "hub" / "models--org--tiny"
    snapshot = cached / "snapshots" / "0123456789abcdef0123456789abcdef01234567"
    shutil.copytree(tiny_model, snapshot)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(snapshot.name)
    code = (
        "from prorl_service.tokens.chat import ChatFormat;"
        "print(ChatFormat.load('org/tiny').end_of_turn_id)"
    )
    environment = os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert int(found.stdout) == chat.end_of_turn_id


def test_a_template_without_end_of_turn_is_refused(chat: ChatFormat) -> None:
    template = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    files = ModelFiles(chat._tokenizer, template, {}, None, [])
    with pytest.raises(InvalidRequest, match="special token"):
        ChatFormat(files)
