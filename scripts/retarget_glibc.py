#!/usr/bin/env python3
"""Lets the x86-64 programs of a directory run on glibc 2.34: `retarget_glibc.py DIRECTORY`.

glibc 2.38 gave strtol and its kin a second name, `__isoc23_strtol`, which also reads "0b101";
programs compiled against it ask for that name. This program renames such a symbol, in place, to the
first name, which every glibc has. It can do no more: if a file needs anything else from a newer
glibc, it changes nothing and fails.
"""

import re
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

NEWEST = (2, 34)
OLDEST = b"GLIBC_2.2.5"
"""Version of all old names on x86-64."""
PREFIX = b"__isoc23_"
NAMES = {PREFIX + name for name in (b"strtol", b"strtoul", b"strtoll", b"strtoull")}


class Refused(Exception):
    """The file cannot be made to run on an older glibc, or this program cannot read it."""


class Elf:
    """The dynamic symbols of a 64-bit little-endian ELF file for x86-64."""

    def __init__(self, data: bytes) -> None:
        self.data = bytearray(data)
        if data[:6] != b"\x7fELF\2\1" or data[18:20] != b"\x3e\0":
            raise Refused("not an ELF file for x86-64")
        self._sections = dict(self._read_sections())

    def _read_sections(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """Yields names, with offset and size in bytes."""
        (table,) = struct.unpack_from("<Q", self.data, 40)
        size, count, names_index = struct.unpack_from("<HHH", self.data, 58)
        headers = [struct.unpack_from("<IIQQQQ", self.data, table + size * i) for i in range(count)]
        for header in headers:
            name = self._text(headers[names_index][4] + header[0])
            yield name.decode(), (header[4], header[5])

    def _text(self, offset: int) -> bytes:
        return bytes(self.data[offset : self.data.index(0, offset)])

    def _name(self, index: int) -> bytes:
        return self._text(self._sections[".dynstr"][0] + index)

    def needed_versions(self) -> Iterator[tuple[int, int, bytes]]:
        """Yields each version of a library: where its record is, its index, its name."""
        need, size = self._sections.get(".gnu.version_r", (0, 0))
        while size:
            _, count, _, first, next_need = struct.unpack_from("<HHIII", self.data, need)
            record = need + first
            for _ in range(count):
                _, _, index, name, next_record = struct.unpack_from("<IHHII", self.data, record)
                yield record, index, self._name(name)
                record += next_record
            if not next_need:
                return
            need += next_need

    def symbols(self) -> Iterator[tuple[int, int, bytes]]:
        """Yields each dynamic symbol: where its record is, the index of its version, its name."""
        table, size = self._sections[".dynsym"]
        versions, _ = self._sections[".gnu.version"]
        for i in range(size // 24):
            record = table + 24 * i
            (name,) = struct.unpack_from("<I", self.data, record)
            (index,) = struct.unpack_from("<H", self.data, versions + 2 * i)
            yield record, index & 0x7FFF, self._name(name)

    def cut_name(self, symbol: int, length: int) -> None:
        """Drops the first `length` characters: names may begin anywhere in the string table."""
        (name,) = struct.unpack_from("<I", self.data, symbol)
        struct.pack_into("<I", self.data, symbol, name + length)

    def set_version(self, record: int, name: bytes) -> None:
        strings, size = self._sections[".dynstr"]
        at = self.data.find(b"\0" + name + b"\0", strings, strings + size) + 1
        if not at:
            raise Refused(f"has no string {name.decode()}")
        struct.pack_into("<I", self.data, record, elf_hash(name))
        struct.pack_into("<I", self.data, record + 8, at - strings)


def elf_hash(name: bytes) -> int:
    """Returns the hash of the ELF specification."""
    value = 0
    for byte in name:
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ high >> 24) & ~high & 0xFFFFFFFF
    return value


def rebound(data: bytes) -> bytes:
    """Returns the file's new content. Raises `Refused`."""
    elf = Elf(data)
    too_new = {index: (at, name) for at, index, name in elf.needed_versions() if is_too_new(name)}
    if not too_new:
        return data
    for record, index, symbol in elf.symbols():
        if index in too_new:
            if symbol not in NAMES:
                raise Refused(f"needs {symbol.decode()} of {too_new[index][1].decode()}")
            elf.cut_name(record, len(PREFIX))
    for at, _ in too_new.values():
        elf.set_version(at, OLDEST)
    return bytes(elf.data)


def is_too_new(version: bytes) -> bool:
    if not version.startswith(b"GLIBC_"):
        return False
    number = re.fullmatch(rb"GLIBC_(\d+)\.(\d+)(\.\d+)?", version)
    if number is None:  # a feature of the loader, such as GLIBC_ABI_DT_RELR
        raise Refused(f"needs {version.decode()}")
    return (int(number[1]), int(number[2])) > NEWEST


def main(directory: Path) -> None:
    contents = {}
    for path in sorted(directory.rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        content = path.read_bytes()
        if not content.startswith(b"\x7fELF"):
            continue
        try:
            contents[path] = rebound(content)
        except Refused as refusal:
            sys.exit(f"{path}: {refusal}")
    for path, content in contents.items():
        path.write_bytes(content)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
