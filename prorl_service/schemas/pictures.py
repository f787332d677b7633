"""Pictures: the ids that stand for them in chains of tokens, and the form that is taken.

A picture's tokens have an id of their own, made from its content and larger than any vocabulary's.
So a chain of ids is a chain of ids *and* pictures: where the picture differs, prefixes, caches and
branches differ, too; and a trainer that forgets the pictures fails at once, instead of training a
policy that does not see. Knows no model: `tokens.pictures` does.
"""

import base64
import hashlib
import io
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any

FIRST_ID = 1 << 30
"""Least id of a picture."""
MAX_PIXELS = 1 << 24
"""Most pixels of a picture, before a model's processor makes it smaller."""
MAX_BYTES = 8 << 20
"""Largest file."""
MAX_RATIO = 200
"""Most that one side is of the other; processors refuse more."""
FORMATS = ("PNG", "JPEG")
OTHER_FORMATS = ("GIF", "WEBP", "BMP", "PPM")
"""Formats of which `canonical` makes PNG."""
ORIENTATION = 0x0112
"""EXIF's tag; programs differ in whether they obey it."""
CHECKED = 16
"""Pictures whose check is remembered."""


def id_of(content: bytes) -> int:
    """Returns the id of a picture's tokens, from `FIRST_ID` to 2^31 - 1."""
    return FIRST_ID | int.from_bytes(hashlib.sha256(content).digest()[:4]) >> 2


def shown(ids: Sequence[int]) -> Iterator[int]:
    """Yields the ids of the pictures in a chain, in their order. Two equal ones that touch are
    one: templates put tokens of their own around each."""
    if max(ids, default=0) >= FIRST_ID:
        yield from (id_ for id_, _ in groupby(ids) if id_ >= FIRST_ID)


def url_of(content: bytes) -> str:
    """Returns a picture as a `data:` URL."""
    kind = "png" if content.startswith(b"\x89PNG") else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def parts_of(texts: Sequence[str], contents: Sequence[bytes]) -> str | list[dict[str, Any]]:
    """Returns a message's content as OpenAI has it: text, or parts if there are pictures. `texts`:
    those around the pictures, one more than there are of these."""
    first, *others = texts
    parts: list[dict[str, Any]] = [{"type": "text", "text": first}]
    for content, text in zip(contents, others, strict=True):
        parts.append({"type": "image_url", "image_url": {"url": url_of(content)}})
        parts.append({"type": "text", "text": text})
    return [one for one in parts if one.get("text") != ""] if contents else first


def padded(ids: Sequence[int], pad_id: int) -> list[int]:
    """Returns a chain in a model's own ids: what its trainer takes, beside the pixels."""
    return [pad_id if one >= FIRST_ID else one for one in ids]


def positions(
    length: int, places: Sequence[tuple[int, int, int]]
) -> tuple[list[int], list[int], list[int]]:
    """Returns the positions of tokens in time, height and width, for models with M-RoPE (arXiv
    2409.12191): a picture's tokens share the first, and have a row and a column. `places`: first
    token, rows and columns of each picture, in their order."""
    time, height, width = list[int](), list[int](), list[int]()

    def read(tokens: int) -> None:
        at = max(time[-1], height[-1], width[-1]) + 1 if time else 0
        for axis in (time, height, width):
            axis.extend(range(at, at + tokens))

    for start, rows, columns in places:
        read(start - len(time))
        at = max(time[-1], height[-1], width[-1]) + 1 if time else 0
        time.extend([at] * (rows * columns))
        height.extend(at + row for row in range(rows) for _ in range(columns))
        width.extend(at + column for _ in range(rows) for column in range(columns))
    read(length - len(time))
    return time, height, width


@lru_cache(CHECKED)
def size_of(content: bytes) -> tuple[int, int]:
    """Returns width and height in pixels. Raises `ValueError` for what two programs could see in
    two ways, or not at all."""
    from PIL import Image  # an extra: a service of texts does not need it

    try:
        with Image.open(_file(content), formats=FORMATS) as picture:
            _check_size(*picture.size)
            mode, turned = picture.mode, picture.getexif().get(ORIENTATION, 1)
            picture.load()
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"the picture cannot be read: {error}") from error
    if mode != "RGB" or turned != 1:
        raise ValueError(
            f"the picture is {'turned by EXIF' if turned != 1 else f'of mode {mode}'}, which "
            "programs show in different ways: `prorl_service.schemas.pictures.canonical` makes a "
            "PNG of mode RGB"
        )
    return picture.size


@lru_cache(CHECKED)
def canonical(content: bytes) -> bytes:
    """Returns a picture as `size_of` takes it: turned as EXIF says, on white where it is
    transparent. Raises `ValueError`."""
    from PIL import Image, ImageOps

    try:
        with Image.open(_file(content), formats=FORMATS + OTHER_FORMATS) as picture:
            _check_size(*picture.size)
            turned = ImageOps.exif_transpose(picture).convert("RGBA")
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"the picture cannot be read: {error}") from error
    white = Image.new("RGBA", turned.size, "white")
    file = io.BytesIO()
    Image.alpha_composite(white, turned).convert("RGB").save(file, "PNG")
    return file.getvalue()


def _file(content: bytes) -> io.BytesIO:
    if len(content) > MAX_BYTES:
        raise ValueError(f"the picture's file has {len(content)} bytes, more than {MAX_BYTES}")
    return io.BytesIO(content)


def _check_size(width: int, height: int) -> None:
    if width * height > MAX_PIXELS or max(width, height) > MAX_RATIO * min(width, height):
        raise ValueError(
            f"the picture has {width} x {height} pixels: more than {MAX_PIXELS} in all, or one "
            f"side more than {MAX_RATIO} times the other"
        )
