"""Reads the rows of a data set, from the hub or from files on this machine. Converts nothing.

A data set of the hub is pinned to the commit of its revision.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prorl_service.errors import InvalidRequest, ProRLError


@dataclass(frozen=True, slots=True)
class Source:
    name: str
    """Name of the data set on the hub, or a path."""
    revision: str
    """The hub's commit, or `sha256:` and the digest of the files."""
    split: str
    rows: Iterable[Mapping[str, Any]]
    total: int | None
    """Number of rows, if it is known before they are read."""


def from_hub(
    name: str, split: str, revision: str | None = None, files: Sequence[str] = ()
) -> Source:
    """Downloads what is not in the hub's cache. `files`: jsonl files with all rows, for a data set
    that `datasets` does not load because it has a loading script. Raises `ProRLError` if the data
    set cannot be read."""
    datasets = _datasets()
    from huggingface_hub import HfApi, hf_hub_download

    try:
        commit = HfApi().dataset_info(name, revision=revision).sha
        if files:
            paths = [
                Path(hf_hub_download(name, file, repo_type="dataset", revision=commit))
                for file in files
            ]
            return Source(name, str(commit), split, _lines(paths), None)
        rows = datasets.load_dataset(name, split=split, revision=commit)
    except Exception as error:  # the hub's, HTTP's or the disk's: users should see them all
        raise ProRLError(
            f"{name} cannot be read from the hub: {error}",
            hint="on a machine without the hub, bring its files: --from FILE or DIRECTORY",
        ) from error
    return Source(name, str(commit), split, rows, len(rows))


def from_path(path: Path, split: str, names: Sequence[str] = ()) -> Source:
    """Reads a parquet, json or jsonl file, a directory of parquet or jsonl files, or what
    `save_to_disk` wrote.

    Only a saved `DatasetDict` and a directory have splits. A split of a directory is the files with
    these `names`, else the files that begin with the split's name, or all files if none does.
    Raises `InvalidRequest`: for lines of JSON only when the rows are iterated.
    """
    if not path.exists():
        raise InvalidRequest.of_field("from", f"there is no {path}")
    try:
        rows, total = _local(path, split, names)
    except (OSError, ValueError) as error:
        raise InvalidRequest.of_field("from", f"{path} cannot be read: {error}") from error
    return Source(str(path), f"sha256:{digest(path)}", split, rows, total)


def digest(path: Path) -> str:
    """Returns the digest of a file, or of all files of a directory and their names."""
    total = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            with file.open("rb") as content:
                part = hashlib.file_digest(content, "sha256").hexdigest()
            total.update(f"{file.relative_to(path)}\0{part}\n".encode())
    return total.hexdigest()


def _local(
    path: Path, split: str, names: Sequence[str]
) -> tuple[Iterable[Mapping[str, Any]], int | None]:
    """Returns the rows, and their number if it is known."""
    if (path / "dataset_info.json").exists() or (path / "dataset_dict.json").exists():
        return _saved(_datasets().load_from_disk(str(path)), split)
    if path.is_file() and _is_array(path):
        rows = list(json.loads(path.read_text()))
        return rows, len(rows)
    files = _files(path, split, names)
    if files[0].suffix != ".parquet":
        return _lines(files), None
    parquet = [str(file) for file in files]
    load = _datasets().load_dataset
    return load("parquet", data_files=parquet, split="train", streaming=True), None


def _is_array(path: Path) -> bool:
    with path.open("rb") as file:
        return path.suffix == ".json" and file.read(1000).lstrip().startswith(b"[")


def _lines(paths: Sequence[Path]) -> Iterator[Mapping[str, Any]]:
    """Yields the rows of JSON files; `datasets` would take some texts for dates."""
    for path in paths:
        with path.open(newline="\n") as file:
            for number, line in enumerate(file, start=1):
                try:
                    if line.strip():
                        yield json.loads(line)
                except ValueError as error:
                    problem = f"{path}, line {number}, cannot be read: {error}"
                    raise InvalidRequest.of_field("from", problem) from error


def _saved(saved: Any, split: str) -> tuple[Any, int]:
    if not hasattr(saved, "keys"):
        return saved, len(saved)
    if split not in saved:
        raise ValueError(f"it has no split {split!r}, only {', '.join(saved)}")
    return saved[split], len(saved[split])


def _files(path: Path, split: str, names: Sequence[str]) -> list[Path]:
    if path.is_dir() and names:
        missing = [name for name in names if not (path / name).exists()]
        if missing:
            raise ValueError(f"{split} needs files that are missing: {', '.join(missing)}")
        return [path / name for name in names]
    if path.is_dir():
        files = sorted(path.rglob("*.parquet")) or sorted(path.rglob("*.jsonl"))
    else:
        files = [path] if path.suffix in (".parquet", ".json", ".jsonl") else []
    if not files:
        raise ValueError("it must be a saved data set, .parquet, .json or .jsonl")
    return [file for file in files if file.name.startswith(split)] or files


def _datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise ProRLError(
            "reading data sets needs the package datasets",
            hint="pip install 'prorl-service[recipes]'",
        ) from error
    return datasets
