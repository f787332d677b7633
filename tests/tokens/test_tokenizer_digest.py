"""Comparison of tokenizers by what their ids mean, not by what a trainer added to them."""

from pathlib import Path

from transformers import AutoTokenizer

from prorl_service.schemas.tokenizer_digest import differing_tokenizer
from prorl_service.tokens.chat import ChatFormat
from tests.tokens.swapped_model import with_tokens_swapped


def test_a_trainers_tokenizer_is_compared_with_the_services(
    tiny_model: Path, tmp_path: Path
) -> None:
    digest = ChatFormat.load(tiny_model).tokenizer_digest()
    trainers = AutoTokenizer.from_pretrained(tiny_model)
    assert differing_tokenizer(trainers, digest) == ""
    assert differing_tokenizer(trainers, None) == ""
    assert differing_tokenizer(object(), digest) == ""
    trainers.add_special_tokens({"pad_token": "[ANOTHER]"})
    assert differing_tokenizer(trainers, digest) == ""
    other = AutoTokenizer.from_pretrained(with_tokens_swapped(tiny_model, tmp_path / "other"))
    assert len(other) + 1 == len(trainers)
    assert "is not that of the service's engines" in differing_tokenizer(other, digest)
