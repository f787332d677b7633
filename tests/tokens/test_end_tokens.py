"""End tokens: a turn may end with others than the template writes; the engine decides."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prorl_service.errors import InvalidRequest
from prorl_service.schemas import Message
from prorl_service.tokens.chat import ChatFormat

OUTPUT = Message(role="tool", content="43")


@pytest.fixture(scope="session")
def end_of_text(chat: ChatFormat) -> int:
    (id_,) = chat.encode("<|endoftext|>")
    return id_


@pytest.fixture(scope="session")
def two_ends(
    tiny_model: Path, end_of_text: int, chat: ChatFormat, tmp_path_factory: pytest.TempPathFactory
) -> ChatFormat:
    """Returns a format with the end tokens of Qwen3, `<|im_end|>` and `<|endoftext|>`."""
    eos = [chat.end_of_turn_id, end_of_text]
    directory = tmp_path_factory.mktemp("two-ends") / "model"
    return ChatFormat.load(saying(tiny_model, directory, generation_config=eos))


def saying(model: Path, directory: Path, **eos: Any) -> Path:
    """Returns a copy of the model whose JSON files name these EOS tokens and no others."""
    shutil.copytree(model, directory)
    for name in ("generation_config", "config"):
        path = directory / f"{name}.json"
        fields = json.loads(path.read_text())
        fields.pop("eos_token_id", None)
        path.unlink()
        if name in eos:
            path.write_text(json.dumps(fields | {"eos_token_id": eos[name]}))
    return directory


ids = st.lists(st.integers(0, 383), max_size=20)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ids, st.booleans())
def test_every_end_token_is_left_out_of_the_text(
    two_ends: ChatFormat, end_of_text: int, said: list[int], by_template: bool
) -> None:
    said = [id_ for id_ in said if id_ not in two_ends.end_ids]
    end = two_ends.end_of_turn_id if by_template else end_of_text
    assert two_ends.decode([*said, end]) == two_ends.decode(said)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ids, st.sampled_from(["<|im_start|>", "<|endoftext|>"]))
def test_a_token_that_the_engine_stopped_at_is_not_text(
    chat: ChatFormat, said: list[int], special: str
) -> None:
    """The engine's own configuration cannot always be read, but a special token is never text."""
    said = [id_ for id_ in said if id_ not in chat.end_ids]
    (end,) = chat.encode(special)
    assert chat.decode([*said, end], stopped=True) == chat.decode(said)
    assert chat.decode([*said, end]) == chat.decode(said) + special


def test_text_is_kept_even_if_the_engine_stopped(chat: ChatFormat) -> None:
    assert chat.decode(chat.encode("42"), stopped=True) == "42"
    assert chat.decode([], stopped=True) == ""


@pytest.mark.parametrize(
    ("eos", "found"),
    [
        ({"generation_config": [0, 1], "config": 3}, {0, 1}),
        ({"generation_config": 0}, {0}),
        ({"generation_config": None, "config": 1}, set()),
        ({"config": 0}, {0}),
        ({"config": [0, 1]}, {0, 1}),
        ({}, set()),
    ],
)
def test_end_tokens_are_read_from_the_files_that_engines_read(
    eos: dict[str, Any], found: set[int], tiny_model: Path, tmp_path: Path, chat: ChatFormat
) -> None:
    """Engines use `config.json` only if there is no `generation_config.json`."""
    model = saying(tiny_model, tmp_path / "model", **eos)
    assert ChatFormat.load(model).end_ids == {chat.end_of_turn_id} | found


def test_the_tokenizers_own_end_token_is_an_end_token(
    tiny_model: Path, tmp_path: Path, end_of_text: int, chat: ChatFormat
) -> None:
    """Engines stop at it, whatever the template writes; in base models the two differ."""
    model = saying(tiny_model, tmp_path / "model")
    path = model / "tokenizer_config.json"
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {"eos_token": {"content": "<|endoftext|>"}})
    )
    assert ChatFormat.load(model).end_ids == {chat.end_of_turn_id, end_of_text}


def test_a_multimodal_model_names_its_end_tokens_in_text_config(
    tiny_model: Path, tmp_path: Path, chat: ChatFormat
) -> None:
    model = saying(tiny_model, tmp_path / "model")
    (model / "config.json").write_text('{"text_config": {"eos_token_id": 0, "vocab_size": 384}}')
    assert ChatFormat.load(model).end_ids == {chat.end_of_turn_id, 0}


@pytest.mark.parametrize("eos", ['"</s>"', "[[1]]", "-1", "true"])
def test_end_tokens_that_are_no_ids_are_refused(eos: str, tiny_model: Path, tmp_path: Path) -> None:
    model = saying(tiny_model, tmp_path / "model")
    (model / "generation_config.json").write_text(f'{{"eos_token_id": {eos}}}')
    with pytest.raises(InvalidRequest, match="eos_token_id"):
        ChatFormat.load(model)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text())
def test_the_templates_end_follows_another_end_once(
    two_ends: ChatFormat, end_of_text: int, content: str
) -> None:
    """The template's end token is in the chain exactly once, whatever ended the turn."""
    answer = [Message(role="tool", content=content)]
    after_own = two_ends.delta_ids(answer, after=two_ends.end_of_turn_id)
    assert two_ends.delta_ids(answer, after=end_of_text) == [two_ends.end_of_turn_id, *after_own]
