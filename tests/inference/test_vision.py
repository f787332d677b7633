"""The reference engine sees what transformers' own model sees, however it cuts a prompt up."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageTextToText

from prorl_service import local
from prorl_service.errors import BackendError
from prorl_service.inference.engines.base import EngineCall
from prorl_service.inference.prompt_json import EncodedPrompt
from prorl_service.inference.reference_engine.kv import KVCache
from prorl_service.inference.reference_engine.model import Chunk, PackedModel
from prorl_service.schemas import Sampling
from prorl_service.schemas.pictures import id_of, url_of
from prorl_service.tokens.chat import ChatFormat
from tests.inference.scripted_backend import answers, backend_of
from tests.pictures import message, png

MORE = [5, 6, 7]
PICTURES = (png(56, 84, seed=1), png(140, 60, seed=2))


@pytest.fixture(scope="module")
def packed(seeing_model: Path) -> PackedModel:
    return PackedModel(seeing_model, torch.float32)


@pytest.fixture(scope="module")
def chat(seeing_model: Path) -> ChatFormat:
    return ChatFormat.load(seeing_model)


def compact(chat: ChatFormat, *pictures: bytes) -> list[int]:
    assert chat.pictures is not None
    return chat.pictures.compact(chat.prompt_ids([message("What?", *pictures)]))


@torch.inference_mode()
def own_logits(model: Path, ids: list[int], pad_id: int, pictures: tuple[bytes, ...]) -> Any:
    module = AutoModelForImageTextToText.from_pretrained(model).eval()
    processor = AutoImageProcessor.from_pretrained(model)
    opened = [Image.open(io.BytesIO(one)) for one in pictures]
    tokens = torch.tensor([ids])
    is_picture = (tokens == pad_id).int()
    seen = processor(images=opened, return_tensors="pt")
    return module(input_ids=tokens, mm_token_type_ids=is_picture, **seen).logits[0]


@pytest.mark.parametrize("at_once", [1000, 7, 3, 1])
def test_logits_are_those_of_transformers(
    at_once: int, packed: PackedModel, chat: ChatFormat, seeing_model: Path
) -> None:
    assert packed.vision is not None
    ids, sight = packed.vision.expanded(compact(chat, *PICTURES), PICTURES)
    wanted = own_logits(
        seeing_model, packed.vision.padded(ids) + MORE, packed.vision.pad_id, PICTURES
    )
    text = [1, 2, 3, 4]
    whole, other = KVCache(packed.kv_layout, len(ids) + len(MORE)), KVCache(packed.kv_layout, 4)
    rest = [*ids, *MORE]
    while rest:
        chunks = [Chunk(whole, rest[:at_once], sight)]
        if other.length < 4:  # a text beside it
            chunks.append(Chunk(other, text[other.length : other.length + 2]))
        found = packed.forward(chunks)[0]
        torch.testing.assert_close(found, wanted[whole.length - 1], atol=5e-5, rtol=1e-4)
        rest = rest[at_once:]


@pytest.fixture(scope="module")
def url(seeing_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with local.engine(seeing_model, log=tmp_path_factory.mktemp("logs") / "log") as engine:
        yield engine.url


def asked(url: str, ids: list[int], *pictures: bytes, status: int = 200) -> Any:
    parts = [{"type": "image_url", "url": url_of(one)} for one in pictures]
    sampling = {"max_tokens": 4, "seed": 0, "logprobs": 0}
    body = {"token_ids": ids, "sampling_params": sampling, "return_token_ids": True}
    headers = {"X-Session-ID": "s"}
    url = f"{url}/inference/v1/generate"
    answer = httpx.post(url, json={**body, "content_parts": parts}, headers=headers, timeout=60)
    assert answer.status_code == status, answer.text
    return answer.json()


def logprobs(answer: Any) -> list[float]:
    return [one["logprob"] for one in answer["choices"][0]["logprobs"]["content"]]


def cached(answer: Any) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


@pytest.mark.processes
def test_the_cache_knows_pictures_apart(url: str, chat: ChatFormat) -> None:
    """Both prompts have the same ids of the vocabulary."""
    one, other = png(seed=3), png(seed=4)
    first = asked(url, compact(chat, one), one)
    again = asked(url, compact(chat, one), one)
    swapped = asked(url, compact(chat, other), other)
    assert first["prompt_token_ids"] == swapped["prompt_token_ids"]
    assert first["usage"]["prompt_tokens"] == len(first["prompt_token_ids"])
    assert cached(again) == first["usage"]["prompt_tokens"] - 1
    assert logprobs(again) == pytest.approx(logprobs(first), abs=1e-5)
    assert cached(swapped) < len(chat.prompt_ids([message("What?")]))
    assert max(abs(a - b) for a, b in zip(logprobs(first), logprobs(swapped), strict=True)) > 0.5


@pytest.mark.processes
def test_what_it_cannot_see_is_refused(url: str, chat: ChatFormat) -> None:
    one = png(seed=5)
    too_many = asked(url, compact(chat, one), one, one, status=400)
    assert "more pictures than placeholders" in too_many["error"]["message"]
    broken = asked(url, compact(chat, one), one[:-50], status=400)
    assert "cannot be read" in broken["error"]["message"]
    expanded = chat.prompt_ids([message("", one)])
    assert id_of(one) in expanded
    assert "out of vocabulary" in asked(url, expanded, one, status=400)["error"]["message"]


@pytest.mark.processes
def test_a_model_of_texts_refuses_pictures(tiny_model: Path, tmp_path: Path) -> None:
    with local.engine(tiny_model, log=tmp_path / "log") as engine:
        refused = asked(engine.url, [1, 2], png(), status=400)
    assert "sees no pictures" in refused["error"]["message"]


@pytest.mark.parametrize("told", [{}, {"prompt_token_ids": [1, 2]}], ids=["ignored", "otherwise"])
async def test_an_engine_that_expands_pictures_otherwise_fails_the_call(
    chat: ChatFormat, told: dict[str, Any]
) -> None:
    prompt = EncodedPrompt(chat.prompt_ids([message("What?", png())]))
    usage = {"prompt_tokens": len(prompt)}
    routes = {"/inference/v1/generate": answers({"usage": usage, "choices": [], **told})}
    async with backend_of(routes, "vllm") as backend:
        backend.engine.chat = chat
        with pytest.raises(BackendError, match="it expands pictures in another way"):
            await backend.generate(EngineCall(prompt, Sampling(), 5, 1, "r", pictures=[png()]))
