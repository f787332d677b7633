"""Digests of tokenizers and chat templates, by which programs compare theirs. Pure.

Token ids travel between trainer, service and engines: if one of them had another vocabulary of the
same size, training would continue on nonsense.
"""

from hashlib import sha256
from typing import Any

PROBE = "The quick brown fox: 17 * 3 = 51; naïve café, 日本語.\n\tdef f(x): return x\n"


def tokenizer_digest(tokenizer: Any) -> str:
    """Returns a digest of the vocabulary of a `tokenizers.Tokenizer` and of its ids of one probe.

    Tokens added to the vocabulary are left out: trainers add some, such as one for padding, and not
    every library keeps them apart.
    """
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    digest = sha256()
    for token in sorted(vocabulary.keys() - added, key=vocabulary.__getitem__):
        digest.update(f"{vocabulary[token]} {token}\n".encode(errors="surrogatepass"))
    digest.update(str(tokenizer.encode(PROBE, add_special_tokens=False).ids).encode())
    return digest.hexdigest()[:32]


def text_digest(text: str) -> str:
    return sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]


def differing_tokenizer(trainers: Any, digest: str | None) -> str:
    """Returns what is wrong with the trainer's tokenizer, given the service's digest, or "".

    `trainers`: a tokenizer of transformers. It cannot be compared if it is not made of a
    `tokenizers.Tokenizer`, or if the service has no engine yet.
    """
    own = getattr(trainers, "backend_tokenizer", None)
    if own is None or digest in (None, tokenizer_digest(own)):
        return ""
    return (
        f"the trainer's tokenizer ({trainers.name_or_path}) is not that of the service's engines: "
        "the same ids would mean other text; train the model that the engines serve, or correct "
        "the tokenizer of either"
    )
