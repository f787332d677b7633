"""Pictures for tests, tasks that show them, and what a trainer's model makes of them."""

import base64
import io
import math
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import torch
from PIL import Image
from transformers import (
    AutoImageProcessor,
    AutoModelForImageTextToText,
    AutoTokenizer,
    Qwen2_5_VLProcessor,
)

from prorl_service.schemas import Group, Limits, Message, Picture, Sampling, Segment, Task
from prorl_service.schemas.pictures import FIRST_ID
from prorl_service.schemas.pictures import shown as in_order

FILE = "P3 2 1 255 255 0 0 0 0 255\n"
LIMITS = Limits(max_turns=3, max_response_tokens=400)


def png(width: int = 56, height: int = 56, seed: int = 0) -> bytes:
    """Returns a picture of noise."""
    pixels = Random(seed).randbytes(3 * width * height)
    return encoded(Image.frombytes("RGB", (width, height), pixels))


def encoded(picture: Image.Image, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    picture.save(file, kind)
    return file.getvalue()


def shown(content: bytes, at: int = 0) -> Picture:
    return Picture(at=at, data=base64.b64encode(content).decode())


def message(text: str, *contents: bytes) -> Message:
    """Returns a question with the pictures before it."""
    return Message(role="user", content=text, pictures=[shown(one) for one in contents])


def looking(name: str, *pictures: bytes, n: int = 1, **fields: Any) -> Group:
    """Returns a group that is asked with these pictures, and may look at one more with a tool; its
    solution does."""
    looks = Message.calling("view_image", path="a.ppm").model_dump(mode="json")
    task = Task(
        task_id="t",
        agent="math",
        messages=[message("Which colour?", *pictures)],
        data={
            "answer": "1",
            "answer_format": "plain",
            "tools": ["view_image"],
            "files": {"a.ppm": FILE},
        },
        solution=[looks, "1"],
    )
    given = {"limits": LIMITS, "sampling": Sampling(seed=3, max_tokens_per_turn=8), **fields}
    return Group(group_id=name, task=task, n=n, **given)


class WithoutVideos(Qwen2_5_VLProcessor):  # type: ignore[misc]
    """Qwen2.5-VL's processor but for videos, whose part needs torchvision."""

    def __init__(self, image_processor: Any, tokenizer: Any) -> None:
        super().__init__(image_processor, tokenizer, None, tokenizer.chat_template)

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
        return argument and super().check_argument_for_proper_class(argument_name, argument)


def processor_of(model: Path) -> Any:
    """Returns the processor of texts and pictures that a trainer takes."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    return WithoutVideos(AutoImageProcessor.from_pretrained(model), tokenizer)


@torch.inference_mode()
def largest_difference(model: Path, segment: Segment, contents: Mapping[int, bytes]) -> float:
    """Returns the most by which the logprobs of a trainer's model differ, in nats; NaN if the
    policy sampled the placeholder, which that model would take for a picture."""
    module = AutoModelForImageTextToText.from_pretrained(model).eval()
    ids = torch.tensor([segment.prompt_ids + segment.response_ids])
    if (ids == module.config.image_token_id).any():
        return math.nan
    is_picture = ids >= FIRST_ID
    opened = [Image.open(io.BytesIO(contents[one])) for one in in_order(ids[0].tolist())]
    seen = AutoImageProcessor.from_pretrained(model)(images=opened, return_tensors="pt")
    padded = ids.masked_fill(is_picture, module.config.image_token_id)
    logits = module(input_ids=padded, mm_token_type_ids=is_picture.int(), **seen).logits
    logprobs = logits[0, :-1].log_softmax(-1).gather(1, padded[0, 1:, None])[:, 0]
    own = logprobs[len(segment.prompt_ids) - 1 :]
    is_sampled = torch.tensor(segment.loss_mask, dtype=torch.bool)
    return float((own - torch.tensor(segment.logprobs))[is_sampled].abs().max())
