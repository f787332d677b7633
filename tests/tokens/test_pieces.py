"""The bytes of single tokens are those of the whole text, for the kinds of vocabulary there are."""

from collections.abc import Sequence
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from prorl_service.tokens.chat import ChatFormat
from prorl_service.tokens.pieces import Pieces, shown

SPACE = "\u2581"
WORDS = ("the", "qui", "ck", "é", "日本", "\n", "<0x", "x>")


def _byte_level() -> Tokenizer:
    """GPT-2's and Qwen's: all bytes, and a few pairs."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {one: number for number, one in enumerate(alphabet)}
    merges = [("t", "h"), ("Ġ", "t"), ("Ã", "©")]
    vocabulary |= {"".join(one): len(alphabet) + n for n, one in enumerate(merges)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _byte_fallback() -> Tokenizer:
    """Llama 2's and Gemma's: words with `▁`, and bytes for what is no word."""
    tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens += [SPACE, *WORDS, *"abcdefghijklmnopqrstuvwxyz"]
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys(["<unk>", *tokens]))}
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


TOKENIZERS = {"byte level": _byte_level(), "byte fallback": _byte_fallback()}
for one in TOKENIZERS.values():
    one.add_special_tokens([AddedToken("<|end|>", special=True)])


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(text=st.text(max_size=40))
def test_pieces_make_up_the_text(kind: str, text: str) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode(text.replace(" ", SPACE) if kind == "byte fallback" else text).ids
    assert joined(tokenizer, ids) == tokenizer.decode(ids, skip_special_tokens=False).encode()


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(data=st.data())
def test_pieces_of_any_ids_that_are_text_are_what_decoding_says(
    kind: str, data: st.DataObject
) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size() - 1), max_size=12))
    pieces = joined(tokenizer, ids)
    with suppress(UnicodeDecodeError):
        assert pieces.decode() == tokenizer.decode(ids, skip_special_tokens=False)


def joined(tokenizer: Tokenizer, ids: Sequence[int]) -> bytes:
    pieces = Pieces(tokenizer)
    return b"".join(map(pieces, ids))


def test_special_tokens_are_spelt_out_and_unknown_ids_are_empty(chat: ChatFormat) -> None:
    assert chat.pieces(chat.end_of_turn_id) == b"<|im_end|>"
    assert chat.pieces(10**6) == b""


@given(st.binary(max_size=8))
def test_what_is_shown_is_text_whatever_the_bytes(piece: bytes) -> None:
    text, is_partial = shown(piece)
    text.encode()
    assert is_partial == (text.encode() != piece)
