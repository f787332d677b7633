"""What is kept of the files that a verifier wrote."""

import hashlib
import io
import tarfile

from prorl_service.agents.harbor.directory.preparation import _trees, kept
from prorl_service.sandbox.layers import Layer


def layer_of(files: dict[str, bytes], links: dict[str, str]) -> Layer:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o750
            tar.addfile(entry, io.BytesIO(data))
        for name, first in links.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.LNKTYPE, first
            tar.addfile(entry)
    layer = Layer()
    layer.append(content.getvalue())
    return layer


def test_a_link_to_a_dropped_file_becomes_the_file() -> None:
    layer = layer_of(
        {"tmp/a": b"one", "opt/b": b"two"},
        {"opt/c": "tmp/a", "opt/d": "opt/b", "opt/e": "tmp/a", "tests/f": "opt/b"},
    )
    content, files = kept(layer, {"opt/e"}, "app", ())
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        found = {one.name: (one.type, one.linkname, one.mode) for one in tar if one.isreg()}
        links = {one.name: one.linkname for one in tar if one.islnk()}
        file = tar.extractfile("opt/c")
        assert file is not None
        assert file.read() == b"one"
    assert list(found) == ["opt/b", "opt/c"]
    assert found["opt/c"][2] == 0o750
    assert links == {"opt/d": "opt/b"}
    assert files == ["opt/b", "opt/c", "opt/d"]


def test_only_what_was_fetched_is_kept() -> None:
    names = [
        *("usr/bin/pytest", "root/.cache/uv/a", "home/me/.local/bin/uv", "var/lib/dpkg/status"),
        *("root/answer", "srv/x", "usr/src/app/.venv/b", "app/y", "usr/share/expected"),
    ]
    files = {name: name.encode() for name in names}
    answer = hashlib.sha256(b"usr/share/expected").digest()
    assert kept(layer_of(files, {}), (), "usr/src/app", {answer})[1] == names[:4]
    assert "root/.cache/uv/a" in kept(layer_of(files, {}), (), "root", ())[1]


def test_what_was_fetched_is_told_from_work_by_the_fewest_names() -> None:
    found = ["root/.cache/uv/a", "root/.cache/uv/b", "root/.local/bin/uv", "usr/bin/x"]
    work = ["root", "root/.local/bin/mine", "usr/local/y"]
    assert _trees(found, work) == ["root/.cache", "root/.local/bin/uv", "usr/bin"]
