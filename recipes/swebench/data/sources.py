"""Reads the rows of a data set: from the hub, or from what is on this machine. Converts nothing.

A hub's data set is pinned to the commit that its revision stands for.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prorl_service.errors import InvalidRequest, ProRLError


@dataclass(frozen=True, slots=True)
class Source:
    name: str
    """Of the data set on the hub, or a path."""
    revision: str
    """The hub's commit, or `sha256:` and the digest of the files."""
    split: str
    rows: Iterable[Mapping[str, Any]]
    total: int | None
    """How many rows there are, if that is known before they are read."""


def from_hub(name: str, split: str, revision: str | None = None) -> Source:
    """Downloads what is not in the hub's cache. Raises `ProRLError` if it cannot be had."""
    datasets = _datasets()
    from huggingface_hub import HfApi

    try:
        commit = HfApi().dataset_info(name, revision=revision).sha
        rows = datasets.load_dataset(name, split=split, revision=commit)
    except Exception as error:  # of the hub, of HTTP, of the disk: all of them the user's to see
        raise ProRLError(
            f"{name} cannot be read from the hub: {error}",
            hint="on a machine without the hub bring its files: --from FILE or DIRECTORY",
        ) from error
    return Source(name, str(commit), split, rows, len(rows))


def from_path(path: Path, split: str) -> Source:
    """A parquet, json or jsonl file, a directory of parquet files, or what `save_to_disk` wrote.

    Only a saved `DatasetDict` and a directory have splits: of the latter, files that begin with
    the split's name, or all files if none does.
    """
    if not path.exists():
        raise InvalidRequest.of_field("from", f"there is no {path}")
    try:
        rows, total = _local(path, split)
    except (OSError, ValueError) as error:
        raise InvalidRequest.of_field("from", f"{path} cannot be read: {error}") from error
    return Source(str(path), f"sha256:{digest(path)}", split, rows, total)


def digest(path: Path) -> str:
    """Of a file, or of all files of a directory and their names."""
    total = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            with file.open("rb") as content:
                part = hashlib.file_digest(content, "sha256").hexdigest()
            total.update(f"{file.relative_to(path)}\0{part}\n".encode())
    return total.hexdigest()


def _local(path: Path, split: str) -> tuple[Iterable[Mapping[str, Any]], int | None]:
    """Rows, and how many if that is known."""
    if (path / "dataset_info.json").exists() or (path / "dataset_dict.json").exists():
        return _saved(_datasets().load_from_disk(str(path)), split)
    if path.suffix in (".json", ".jsonl"):
        rows = _json(path.read_text())
        return rows, len(rows)
    files = [str(file) for file in _parquet_files(path, split)]
    load = _datasets().load_dataset
    return load("parquet", data_files=files, split="train", streaming=True), None


def _json(text: str) -> list[Mapping[str, Any]]:
    """An array, or a line for each. Not by `datasets`, which takes some texts for dates."""
    if text.lstrip().startswith("["):
        return list(json.loads(text))
    return [json.loads(line) for line in text.split("\n") if line.strip()]


def _saved(saved: Any, split: str) -> tuple[Any, int]:
    if not hasattr(saved, "keys"):
        return saved, len(saved)
    if split not in saved:
        raise ValueError(f"it has no split {split!r}, only {', '.join(saved)}")
    return saved[split], len(saved[split])


def _parquet_files(path: Path, split: str) -> list[Path]:
    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    files = [file for file in files if file.name.startswith(split)] or files
    if not files or files[0].suffix != ".parquet":
        raise ValueError("it is neither a saved data set nor .parquet, .json or .jsonl")
    return files


def _datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise ProRLError(
            "reading data sets needs the package datasets",
            hint="pip install 'prorl-service[recipes]'",
        ) from error
    return datasets
