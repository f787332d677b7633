"""Files and directories into our sandboxes and out of them."""

import hashlib
import os
from pathlib import Path

import pytest

from tests.harbor.environments import Making

pytestmark = pytest.mark.processes


async def test_a_tree_comes_back_with_modes_links_and_empty_directories(
    making: Making, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    (source / "deep" / "er").mkdir(parents=True)
    (source / "empty").mkdir()
    (source / "deep" / "er" / "program").write_bytes(b"#!/bin/sh\necho \xff\n")
    (source / "deep" / "er" / "program").chmod(0o750)
    (source / "secret").write_text("")
    (source / "secret").chmod(0o600)
    (source / "ünïcode name\n").write_text("x")
    (source / "link").symlink_to("deep/er/program")
    environment = await making.started()
    await environment.upload_dir(source, "/made/target")
    listed = await environment.exec("find . -printf '%y %m %u %p %l\\n' | sort", cwd="/made/target")
    assert listed.stdout is not None
    assert "f 750 root ./deep/er/program " in listed.stdout
    assert "f 600 root ./secret " in listed.stdout
    assert "l 777 root ./link deep/er/program" in listed.stdout
    await environment.download_dir("/made/target", tmp_path / "back")
    assert _tree(tmp_path / "back") == _tree(source)


def _tree(root: Path) -> dict[str, tuple[int, bytes | str]]:
    return {
        str(path.relative_to(root)): (
            path.lstat().st_mode & 0o777 if not path.is_dir() else 0,
            os.readlink(path)
            if path.is_symlink()
            else (path.read_bytes() if path.is_file() else ""),
        )
        for path in root.rglob("*")
    }


async def test_large_files_and_many_files_are_whole(making: Making, tmp_path: Path) -> None:
    from prorl_harbor.transfer import PIECE_BYTES

    source = tmp_path / "source"
    source.mkdir()
    sizes = (0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES + 5)
    for number, size in enumerate(sizes):
        (source / f"{number}").write_bytes(os.urandom(size))
    many = source / "many"
    many.mkdir()
    for number in range(3000):
        (many / f"{number}").write_text(f"{number}\n")
    environment = await making.started({"storage_mb": 512})
    await environment.upload_dir(source, "/x")
    sums = await environment.exec("sha256sum ? && ls many | wc -l && cat many/* | wc -c", cwd="/x")
    assert sums.stdout is not None
    *files, count, characters = sums.stdout.splitlines()
    expected = [hashlib.sha256((source / f"{n}").read_bytes()).hexdigest() for n in range(6)]
    assert [line.split()[0] for line in files] == expected
    assert (int(count), int(characters)) == (3000, sum(len(f"{n}\n") for n in range(3000)))
    await environment.download_dir("/x", tmp_path / "back")
    assert _tree(tmp_path / "back") == _tree(source)
    left = await environment.exec("ls -A /tmp")
    assert left.stdout is None


async def test_a_file_goes_to_its_path_or_into_a_directory(making: Making, tmp_path: Path) -> None:
    file = tmp_path / "file.txt"
    file.write_text("text")
    file.chmod(0o755)
    environment = await making.started({"workdir": "/work"})
    await environment.upload_file(file, "/new/dir/renamed")
    await environment.upload_file(file, "/new/dir")
    await environment.upload_file(file, "/new/other/")
    await environment.upload_file(file, "relative")
    found = await environment.exec("find /new /work -type f -printf '%m %p\\n' | sort")
    assert found.stdout == (
        "755 /new/dir/file.txt\n755 /new/dir/renamed\n755 /new/other/file.txt\n755 /work/relative\n"
    )
    await environment.download_file("/work/relative", tmp_path / "sub" / "back")
    assert (tmp_path / "sub" / "back").read_text() == "text"
    assert (tmp_path / "sub" / "back").stat().st_mode & 0o777 == 0o755


async def test_what_is_missing_is_an_error_of_its_kind(making: Making, tmp_path: Path) -> None:
    environment = await making.started()
    with pytest.raises(FileNotFoundError, match="/nothing"):
        await environment.download_file("/nothing", tmp_path / "x")
    with pytest.raises(FileNotFoundError):
        await environment.download_dir("/nothing", tmp_path / "x")
    with pytest.raises(IsADirectoryError):
        await environment.download_file("/etc", tmp_path / "x")
    with pytest.raises(NotADirectoryError):
        await environment.download_dir("/etc/passwd", tmp_path / "x")
    with pytest.raises(FileNotFoundError, match="Source file not found"):
        await environment.upload_file(tmp_path / "none", "/x")
    with pytest.raises(FileNotFoundError, match="Source directory not found"):
        await environment.upload_dir(tmp_path / "none", "/x")
    assert not (tmp_path / "x").exists()


async def test_a_hostile_directory_neither_leads_out_nor_hides_its_files(
    making: Making, tmp_path: Path
) -> None:
    environment = await making.started({"storage_mb": 256}, download_mb=8)
    await environment.exec(
        "mkdir -p /logs/verifier && cd /logs/verifier && echo 1 > reward.txt"
        "; ln -s /etc/passwd absolute; ln -s ../../../etc/passwd up; ln -s . here"
        "; mkfifo fifo; truncate -s 100M sparse; python3 -c 'import socket;"
        'socket.socket(socket.AF_UNIX).bind("socket")\''
        "; mkdir closed && echo x > closed/file && chmod 0 closed closed/file"
        "; for i in $(seq 300); do mkdir dddddddddddddddddddd && cd dddddddddddddddddddd; done"
    )
    target = tmp_path / "verifier"
    await environment.download_dir("/logs/verifier", target)
    assert (target / "reward.txt").read_text() == "1\n"
    assert (target / "closed" / "file").read_text() == "x\n"
    assert os.readlink(target / "here") == "."
    for name in ("absolute", "up", "fifo", "sparse", "socket"):
        assert name not in os.listdir(target)
    with pytest.raises(OSError, match="too large"):
        await environment.download_file("/logs/verifier/sparse", tmp_path / "sparse")


async def test_uploads_replace_what_a_model_has_put_in_their_way(
    making: Making, tmp_path: Path
) -> None:
    tests = tmp_path / "tests"
    tests.mkdir()
    for name in ("fifo", "link", "plain"):
        (tests / name).write_text("new")
    environment = await making.started()
    await environment.exec(
        "mkdir /tests; cd /tests; mkfifo fifo; ln -s /etc/passwd link; echo old >plain"
        "; chmod 0 plain; cp /etc/passwd /tmp/passwd"
    )
    await environment.upload_dir(tests, "/tests")
    done = await environment.exec("cat fifo link plain; cmp /etc/passwd /tmp/passwd", cwd="/tests")
    assert (done.stdout, done.return_code) == ("newnewnew", 0)


async def test_an_upload_that_does_not_fit_is_an_error(making: Making, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(30 << 20))
    environment = await making.started({"storage_mb": 20})
    with pytest.raises(OSError, match=r"space|large"):
        await environment.upload_file(tmp_path / "big", "/big")


async def test_harbors_own_filtered_and_excluding_downloads_work(
    making: Making, tmp_path: Path
) -> None:
    environment = await making.started()
    await environment.exec("mkdir -p /logs/x/sub; cd /logs/x; touch a.log b.txt sub/c.log")
    await environment.download_dir_filtered(
        source_dir="/logs/x", target_dir=tmp_path / "filtered", include=["*.log"]
    )
    await environment.download_dir_with_exclusions(
        source_dir="/logs/x", target_dir=tmp_path / "excluding", exclude=["*.log"]
    )
    assert sorted(_tree(tmp_path / "filtered")) == ["a.log", "sub", "sub/c.log"]
    assert sorted(_tree(tmp_path / "excluding")) == ["b.txt", "sub"]
