"""Rows written to standard output or a file: JSONL, or Parquet if the file's name ends in it.

A file is complete or absent. Parquet needs pyarrow, which is imported only then.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from prorl_service.errors import ProRLError
from prorl_service.utils.files import whole_file, write_whole

Row = dict[str, Any]

BATCH = 64
"""Rows held in memory at a time."""


def write_rows(rows: Iterable[Row], out: Path | None, columns: Mapping[str, str]) -> int:
    """Returns the number of rows. `out` is None for standard output; `columns` types Parquet's.

    Raises `ProRLError`.
    """
    if out is not None and out.suffix == ".parquet":
        return _write_parquet(rows, out, columns)
    return write_lines(map(_line, rows), out)


def write_lines(lines: Iterable[str], out: Path | None) -> int:
    if out is None:
        return _count(map(_print, lines))
    try:
        with whole_file(out) as file:
            return _count(file.write(line + "\n") for line in lines)
    except OSError as error:
        raise _cannot_write(out, error) from error


def write_document(document: Row, name: str, out: Path | None) -> None:
    """Writes the file `name` in the directory `out`. Raises `ProRLError`."""
    if out is None:
        _print(_line(document))
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_whole(out / name, _line(document) + "\n")
    except OSError as error:
        raise _cannot_write(out, error) from error


def _line(row: Row) -> str:
    return json.dumps(row, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")


def _count(things: Iterable[object]) -> int:
    return sum(1 for _ in things)


def _cannot_write(out: Path, error: OSError) -> ProRLError:
    return ProRLError(f"--out {out}: {error.strerror}")


def _write_parquet(rows: Iterable[Row], out: Path, columns: Mapping[str, str]) -> int:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = pa.schema([(name, _type(pa, type_)) for name, type_ in columns.items()])
    except (ImportError, AttributeError):
        raise ProRLError(
            f"--out {out}: Parquet needs pyarrow 19 or newer",
            hint="`pip install 'pyarrow>=19'`, or name a file that ends in .jsonl",
        ) from None
    written = 0
    try:
        with (
            whole_file(out) as file,
            pq.ParquetWriter(file.buffer, schema, compression="zstd") as writer,
        ):
            for batch in _batches(rows):
                arrays = [
                    _column(pa, [row[name] for row in batch], type_)
                    for name, type_ in columns.items()
                ]
                writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
                written += len(batch)
    except OSError as error:
        raise _cannot_write(out, error) from error
    return written


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    left = iter(rows)
    while batch := list(islice(left, BATCH)):
        yield batch


def _type(pa: Any, name: str) -> Any:
    """Returns an Arrow type. Messages are JSON, since their fields and arguments differ: a struct
    column would pad each message with the fields of all others."""
    if name.startswith("list<"):
        return pa.list_(_type(pa, name.removeprefix("list<").removesuffix(">")))
    return {
        "json": pa.json_,
        "text": pa.string,
        "int": pa.int32,
        "mask": pa.int8,
        "float": pa.float64,
        "logprob": pa.float32,
        "bool": pa.bool_,
    }[name]()


def _column(pa: Any, values: Sequence[Any], name: str) -> Any:
    if name != "list<json>":
        return pa.array(values, _type(pa, name))
    texts = pa.array([[_line(one) for one in value] for value in values], pa.list_(pa.string()))
    items = pa.ExtensionArray.from_storage(pa.json_(), texts.values)
    return pa.ListArray.from_arrays(texts.offsets, items)
