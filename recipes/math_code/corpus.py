"""Documents in memory, ranked by BM25: enough for tests and for corpora of some 100,000 pages."""

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

K1, B = 1.5, 0.75
"""Usual parameters of BM25: saturation of a word's count, and weight of a document's length."""
SUFFIXES = {".txt", ".md"}


@dataclass(frozen=True, slots=True)
class Document:
    id: str
    title: str
    text: str


class Corpus:
    def __init__(self, documents: Iterable[Document]) -> None:
        """Raises `ValueError` if two documents share an id, or if there are none."""
        self.documents: dict[str, Document] = {}
        self._postings: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
        self._lengths: dict[str, int] = {}
        for document in documents:
            if document.id in self.documents:
                raise ValueError(f"two documents have the id {document.id!r}")
            words = _words(f"{document.title} {document.text}")
            self.documents[document.id] = document
            self._lengths[document.id] = len(words)
            for word, count in Counter(words).items():
                self._postings[word].append((document.id, count))
        if not self.documents:
            raise ValueError("there are no documents")
        self._mean_length = max(1.0, sum(self._lengths.values()) / len(self._lengths))

    def search(self, query: str, limit: int) -> list[Document]:
        """Returns the best `limit` documents that have a word of the query, ties in order of
        ids."""
        scores: defaultdict[str, float] = defaultdict(float)
        for word in dict.fromkeys(_words(query)):
            found = self._postings.get(word, [])
            rarity = math.log(1 + (len(self.documents) - len(found) + 0.5) / (len(found) + 0.5))
            for id_, count in found:
                length = self._lengths[id_] / self._mean_length
                scores[id_] += rarity * count * (K1 + 1) / (count + K1 * (1 - B + B * length))
        ranked = sorted(scores, key=lambda id_: (-scores[id_], id_))
        return [self.documents[id_] for id_ in ranked[:limit]]


def read_documents(path: Path) -> Iterator[Document]:
    """Yields the documents of a directory (text and Markdown files, named by their paths), or of a
    JSONL file with `id`, `text` and perhaps `title`. Raises `ValueError` and `OSError`."""
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            if file.suffix in SUFFIXES and file.is_file():
                name = file.relative_to(path).as_posix()
                yield Document(name, file.stem, file.read_text(errors="replace"))
        return
    with path.open() as lines:
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
                yield Document(str(row["id"]), str(row.get("title", "")), str(row["text"]))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ValueError(f"{path}, line {number}: not a document: {error!r}") from None


def snippet(document: Document, query: str, length: int) -> str:
    """Returns the paragraph with most of the query's words, cut to `length` characters."""
    wanted = set(_words(query))
    paragraphs = [one.strip() for one in document.text.split("\n\n") if one.strip()] or [""]
    best = max(paragraphs, key=lambda paragraph: len(wanted.intersection(_words(paragraph))))
    return best if len(best) <= length else best[:length].rstrip() + " ..."


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())
