"""What is kept of the files that a verifier wrote."""

import io
import tarfile

from prorl_service.agents.harbor.directory.preparation import _kept
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
    content, files = _kept(layer, {"opt/e"}, ("tmp", "tests"))
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        found = {one.name: (one.type, one.linkname, one.mode) for one in tar if one.isreg()}
        links = {one.name: one.linkname for one in tar if one.islnk()}
        file = tar.extractfile("opt/c")
        assert file is not None
        assert file.read() == b"one"
    assert list(found) == ["opt/b", "opt/c"]
    assert found["opt/c"][2] == 0o750
    assert links == {"opt/d": "opt/b"}
    assert files == 3
