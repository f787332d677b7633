"""A picture's tokens are as many as the model's processor makes, and have an id of its content."""

import io
import struct
import zlib
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pydantic import ValidationError
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from prorl_service.errors import InvalidRequest
from prorl_service.schemas import Message
from prorl_service.schemas.pictures import FIRST_ID, canonical, id_of, shown, size_of, url_of
from prorl_service.tokens.chat import ChatFormat
from prorl_service.tokens.messages import defused
from prorl_service.tokens.pictures import PAD, PLACEHOLDER, PictureFormat
from prorl_service.tokens.reading import Conversation, ReplyReader
from tests.pictures import encoded, message, png
from tests.pictures import shown as shown_at

SIDES = st.integers(1, 700)


@pytest.fixture(scope="module")
def seeing(seeing_model: Path) -> ChatFormat:
    return ChatFormat.load(seeing_model)


@pytest.fixture(scope="module")
def pictures(seeing: ChatFormat) -> PictureFormat:
    assert seeing.pictures is not None
    return seeing.pictures


@given(width=SIDES, height=SIDES, least=st.integers(1, 64), most=st.integers(64, 500))
def test_a_picture_has_as_many_tokens_as_its_processor_makes(
    width: int, height: int, least: int, most: int
) -> None:
    side = 28
    picture = Image.new("RGB", (width, height))
    limits = {"min_pixels": least * side**2, "max_pixels": most * side**2}
    processor = Qwen2VLImageProcessorPil(patch_size=14, merge_size=2, **limits)
    made = PictureFormat(0, side, *limits.values())
    try:
        wanted = int(processor(images=[picture])["image_grid_thw"][0].prod()) // 4
    except ValueError:
        with pytest.raises(InvalidRequest, match="times the other"):
            made.tokens(encoded(picture))
    else:
        assert made.tokens(encoded(picture)) == wanted


def test_a_prompt_has_the_pictures_where_they_are_shown(
    seeing: ChatFormat, pictures: PictureFormat
) -> None:
    first, second = png(84, 56, seed=1), png(seed=2)
    parts = [
        ("Look: ", None),
        ("", first),
        (" and ", None),
        ("", second),
        (" <|image_pad|>?", None),
    ]
    content = [
        {"type": "text", "text": text}
        if one is None
        else {"type": "image_url", "image_url": {"url": url_of(one)}}
        for text, one in parts
    ]
    asked = Message.model_validate({"role": "user", "content": content})
    assert asked.content == "Look:  and  <|image_pad|>?"
    ids = seeing.prompt_ids([asked])
    assert [*shown(ids)] == [id_of(first), id_of(second)]
    assert (ids.count(id_of(first)), ids.count(id_of(second))) == (6, 4)
    text = seeing.decode(pictures.compact(ids))
    assert f"Look: {PLACEHOLDER} and {PLACEHOLDER} <\u200b|image_pad|>?" in text
    assert pictures.padded(ids).count(pictures.pad_id) == 10
    others = seeing.prompt_ids([message("Look: ", png(84, 56, seed=3))])
    assert id_of(first) not in others


CONTENTS = [png(seed=1), png(84, 56, seed=2)]
PIECES = [PLACEHOLDER, PAD, "<|im_end|>\n<|im_start|>user\n", "<", " ", "a", "é"]


@st.composite
def showing(draw: st.DrawFn, /, **fields: str) -> Message:
    """A message with pictures at any places of a text that spells placeholders, too."""
    content = "".join(draw(st.lists(st.sampled_from(PIECES), max_size=4)))
    places = sorted(draw(st.lists(st.integers(0, len(content)), max_size=3)))
    pictures = [shown_at(draw(st.sampled_from(CONTENTS)), at) for at in places]
    return Message.model_validate({**fields, "content": content, "pictures": pictures})


@pytest.mark.slow
@given(
    asked=st.lists(showing(role="user"), min_size=1, max_size=3),
    result=showing(role="tool", name="look", tool_call_id="call00000"),
)
def test_pictures_are_read_back_where_the_policy_saw_them(
    seeing: ChatFormat, asked: list[Message], result: Message
) -> None:
    reader, after = ReplyReader(seeing), seeing.end_of_turn_id
    known = Conversation(contents={id_of(one): one for one in CONTENTS})
    ids, between = seeing.prompt_ids(asked), seeing.delta_ids([result], after=after)
    read, calls = reader.prompt(ids, known), [("call00000", "look")]
    answers = reader.between(between, after=after, calls=calls, known=known)
    assert read is not None
    assert answers is not None
    assert [one["content"] for one in [*read.messages, *answers]] == [
        defused(one.parts, seeing.defuse) for one in [*asked, result]
    ]
    assert seeing.prompt_ids([Message(**one) for one in read.messages]) == ids
    assert seeing.delta_ids([Message(**one) for one in answers], after=after) == between
    if any(one.pictures for one in asked):
        assert reader.prompt(ids, Conversation()) is None


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_ids_of_pictures_are_of_no_vocabulary(one: bytes, other: bytes) -> None:
    assert FIRST_ID <= id_of(one) < 1 << 31
    assert (id_of(one) == id_of(other)) == (one == other)


def test_a_model_without_vision_takes_none(chat: ChatFormat) -> None:
    with pytest.raises(InvalidRequest, match="which this model does not see"):
        chat.prompt_ids([message("Look", png())])


def bomb(width: int, height: int) -> bytes:
    """Returns a PNG of a few hundred bytes that says to be large."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        crc = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", crc)

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(bytes(1 << 16))
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    )


def turned() -> bytes:
    picture = Image.new("RGB", (20, 40))
    exif = picture.getexif()
    exif[0x0112] = 6
    file = io.BytesIO()
    picture.save(file, "JPEG", exif=exif)
    return file.getvalue()


HOSTILE = {
    "empty": b"",
    "text": b"no picture",
    "truncated": png()[:-60],
    "a bomb": bomb(60_000, 60_000),
    "too many pixels": bomb(5000, 5000),
    "a line": encoded(Image.new("RGB", (1, 500))),
}
OTHERS = {
    "transparent": encoded(Image.new("RGBA", (20, 40), (255, 0, 0, 0))),
    "grey": encoded(Image.new("L", (20, 40))),
    "16 bits": encoded(Image.new("I;16", (20, 40))),
    "palette": encoded(Image.new("P", (20, 40))),
    "a GIF": encoded(Image.new("P", (20, 40)), "GIF"),
    "turned by EXIF": turned(),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_what_cannot_be_seen_is_refused(content: bytes, pictures: PictureFormat) -> None:
    for use in (size_of, canonical):
        with pytest.raises(ValueError, match="the picture"):
            use(content)
    with pytest.raises(InvalidRequest, match="the picture"):
        pictures.tokens(content)


@given(st.data())
def test_a_damaged_picture_is_read_or_refused(data: st.DataObject) -> None:
    content = bytearray(png(30, 20))
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with suppress(ValueError):
        assert size_of(canonical(bytes(content)))


@pytest.mark.parametrize("content", OTHERS.values(), ids=OTHERS)
def test_what_programs_show_in_two_ways_becomes_one(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"canonical|cannot be read"):
        size_of(content)
    made = canonical(content)
    width, height = size_of(made)
    assert {width, height} == {20, 40}
    assert canonical(made) == made


def test_a_transparent_picture_is_on_white() -> None:
    with Image.open(io.BytesIO(canonical(OTHERS["transparent"]))) as picture:
        assert picture.getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"pictures": [{"data": "?"}]}, "it is no base64"),
        ({"pictures": [{"at": 3, "data": ""}]}, "in the content, in their order"),
        ({"role": "assistant", "pictures": [{"data": ""}]}, "have no pictures"),
        ({"content": [{"type": "video"}]}, "part 0 is neither a text nor an image_url"),
        (
            {"content": [{"type": "image_url", "image_url": {"url": "http://x/a.png"}}]},
            "give the picture as data:",
        ),
    ],
)
def test_a_message_says_what_is_wrong_with_it(fields: dict[str, object], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        Message.model_validate({"role": "user", "content": "ab", **fields})
