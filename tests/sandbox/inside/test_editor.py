"""The editor as a model uses it, and everything a file can be."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from prorl_service.sandbox.base import SandboxLimits, ToolResult
from prorl_service.sandbox.guest.execd.editor import HISTORY_BYTES
from prorl_service.sandbox.host.sandbox import RemoteSandbox
from tests.sandbox.sandboxes import bash, output, running

pytestmark = [pytest.mark.processes, pytest.mark.unprivileged]


class Files:
    """Calls of the editor, with paths relative to `home` sent as absolute ones."""

    def __init__(self, sandbox: RemoteSandbox, home: str) -> None:
        self.sandbox = sandbox
        self.home = home

    async def __call__(self, command: str, path: str = "file", **arguments: Any) -> ToolResult:
        call = {"command": command, "path": f"{self.home}/{path}", **arguments}
        return await self.sandbox.call_tool("str_replace_editor", call, timeout_s=20)

    async def done(self, command: str, path: str = "file", **arguments: Any) -> str:
        result = await self(command, path, **arguments)
        assert not result.is_error, result.output
        return result.output.replace(self.home, "~")

    async def refused(self, command: str, path: str = "file", **arguments: Any) -> str:
        result = await self(command, path, **arguments)
        assert result.is_error, result.output
        return result.output.replace(self.home, "~")


@pytest_asyncio.fixture(loop_scope="module")
async def files() -> AsyncIterator[Files]:
    """Yields the editor in one kind of sandbox; all kinds have the same one."""
    async with running("bubblewrap") as sandbox:
        yield Files(sandbox, "/workspace")


async def test_an_editing_session_works_in_every_kind_of_sandbox(
    in_any_kind: RemoteSandbox,
) -> None:
    files = Files(in_any_kind, await output(in_any_kind, "pwd"))
    text = "def f():\n\treturn 1\n"
    assert await files.done("create", "src/f.py", file_text=text) == (
        "File created successfully at: ~/src/f.py"
    )
    assert await files.done(
        "str_replace", "src/f.py", old_str="\treturn 1", new_str="\treturn 2"
    ) == (
        "The file ~/src/f.py has been edited. Here's the result of running `cat -n` on a snippet of"
        " ~/src/f.py:\n     1\tdef f():\n     2\t\treturn 2\n"
        "Review the changes and make sure they are as expected. Edit the file again if necessary."
    )
    await files.done("insert", "src/f.py", insert_line=0, new_str="import os\n")
    assert await in_any_kind.download("src/f.py") == b"import os\n\ndef f():\n\treturn 2\n"
    await files.done("undo_edit", "src/f.py")
    shown = await files.done("undo_edit", "src/f.py")
    assert shown.startswith("Last edit to ~/src/f.py undone successfully. Here's the result")
    assert await in_any_kind.download("src/f.py") == text.encode()
    await files.done("undo_edit", "src/f.py")
    assert await output(in_any_kind, "ls src") == ""
    assert await files.refused("undo_edit", "src/f.py") == "No edit history found for ~/src/f.py."


async def test_view_shows_numbered_lines(files: Files) -> None:
    await files.sandbox.upload("file", b"one\n\n\tthree\nfour")
    heading = "Here's the result of running `cat -n` on ~/file:\n"
    assert (
        await files.done("view")
        == heading + "     1\tone\n     2\t\n     3\t\tthree\n     4\tfour\n"
    )
    assert await files.done("view", view_range=[2, 3]) == heading + "     2\t\n     3\t\tthree\n"
    assert await files.done("view", view_range=[4, -1]) == heading + "     4\tfour\n"
    assert (await files.done("view", view_range=[4, 9])).endswith(
        "NOTE: the file has only 4 lines.\n"
    )


@pytest.mark.parametrize(
    "view_range", [[0, 2], [5, 6], [3, 2], [1], [1, 2, 3], ["1", "2"], [True, 2], "1-2", 3, [1, -2]]
)
async def test_a_wrong_range_is_explained(files: Files, view_range: object) -> None:
    await files.sandbox.upload("file", b"1\n2\n3\n4\n")
    assert "Invalid `view_range`" in await files.refused("view", view_range=view_range)


async def test_a_directory_is_listed_two_levels_deep_without_hidden_ones(files: Files) -> None:
    await bash(
        files.sandbox, "mkdir -p a/b/c .git/x a/.h; touch a/b/c/deep a/f .hidden b; ln -s / link"
    )
    assert await files.done("view", "") == (
        "Here's the files and directories up to 2 levels deep in ~/, excluding hidden items:\n"
        "~/\n~/a/\n~/a/b/\n~/a/f\n~/b\n~/link\n"
    )
    assert "not allowed" in await files.refused("view", "a", view_range=[1, 2])
    for command in ("str_replace", "insert", "undo_edit"):
        await files.refused(command, "a", old_str="a", new_str="b", insert_line=0)
    assert "File already exists at: ~/a." in await files.refused("create", "a", file_text="")


async def test_missing_and_unknown_arguments_are_explained(files: Files) -> None:
    await files.sandbox.upload("file", b"x\n")
    assert "`file_text` is required for command: create" in await files.refused("create", "new")
    assert "`old_str` is required" in await files.refused("str_replace")
    assert "`new_str` is required" in await files.refused("insert", insert_line=1)
    assert "`insert_line` is required" in await files.refused("insert", new_str="y")
    for line in (-1, 2, "1", True):
        await files.refused("insert", new_str="y", insert_line=line)
    assert "Allowed commands are: view, create" in await files.refused("delete")
    assert await files.refused("view", "none") == "~/none: No such file or directory"
    assert "must be text" in await files.refused("create", "new", file_text="a\0b")
    assert "must be text" in await files.refused("create", "new", file_text=5)
    for arguments in ({}, {"command": "view"}, {"command": ["view"], "path": "/"}):
        result = await files.sandbox.call_tool("str_replace_editor", arguments, timeout_s=20)
        assert result.is_error
    result = await files.sandbox.call_tool(
        "str_replace_editor", {"command": "view", "path": "file"}, timeout_s=20
    )
    assert "not an absolute path" in result.output
    assert f"Maybe you meant {files.home}/file?" in result.output


async def test_create_never_overwrites(files: Files) -> None:
    await bash(files.sandbox, "echo kept >file; ln -s nowhere dangling")
    for path in ("file", "dangling"):
        assert "Cannot overwrite" in await files.refused("create", path, file_text="lost")
    assert await files.sandbox.download("file") == b"kept\n"


async def test_a_replacement_needs_exactly_one_match(files: Files) -> None:
    await files.sandbox.upload("file", b"a = 1\nb = 1\nc = 1\n")
    problem = await files.refused("str_replace", old_str="= 1", new_str="= 2")
    assert "Multiple occurrences of old_str `= 1` in lines [1, 2, 3]" in problem
    assert "did not appear verbatim in ~/file" in await files.refused(
        "str_replace", old_str="d = 1"
    )
    assert "must not be empty" in await files.refused("str_replace", old_str="", new_str="x")
    assert "must be different" in await files.refused("str_replace", old_str="a", new_str="a")
    await files.done("str_replace", old_str="b = 1\n")
    assert await files.sandbox.download("file") == b"a = 1\nc = 1\n"


async def test_a_near_miss_in_whitespace_is_shown(files: Files) -> None:
    await files.sandbox.upload("file", b"class A:\n    def f(self):\n        pass\n\n\tx = 1\n")
    problem = await files.refused("str_replace", old_str="  def f(self):\n    pass", new_str="")
    assert "differs from it only in whitespace" in problem
    assert problem.endswith("     2\t    def f(self):\n     3\t        pass\n")
    assert "only in whitespace" in await files.refused("str_replace", old_str="    x = 1")


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"a\r\nb\r\nc\r\n", "b\nc", "x\ny\nz", b"a\r\nx\r\ny\r\nz\r\n"),
        (b"a\r\nb\r\nc", "b", "x\ny", b"a\r\nx\r\ny\r\nc"),
        (b"a\r\nb", "b", "x\ny", b"a\r\nx\r\ny"),
        (b"a\r\nb\nc\r\nd\n", "b\nc", "x\ny", b"a\r\nx\ny\r\nd\n"),
        (b"a\r\nb\nc\r\nd\n", "a\nb", "x\ny", b"x\r\ny\nc\r\nd\n"),
        (b"a\nb", "b", "c", b"a\nc"),
        (b"a\nb", "\nb", "", b"a"),
        (
            b"\xff\xfe a \xe9\n",
            " a ",
            " é ",
            "\udcff\udcfe é \udce9\n".encode("utf-8", "surrogateescape"),
        ),
        (b"\ta\n        b\n", "\ta", "\tc", b"\tc\n        b\n"),
        (b"x\x0cy\x1cz\xc2\x85w\n", "y", "v", b"x\x0cv\x1cz\xc2\x85w\n"),
        (b"lone\rcr\r\n", "lone", "a", b"a\rcr\r\n"),
        (b"a.b*c\\d\n", "a.b*c\\d", "\\1\\g<0>", b"\\1\\g<0>\n"),
    ],
)
async def test_everything_except_the_match_stays_byte_for_byte(
    files: Files, before: bytes, old: str, new: str, after: bytes
) -> None:
    await files.sandbox.upload("file", before)
    await files.done("str_replace", old_str=old, new_str=new)
    assert await files.sandbox.download("file") == after
    await files.done("undo_edit")
    assert await files.sandbox.download("file") == before


@pytest.mark.parametrize(
    ("before", "line", "new", "after"),
    [
        (b"", 0, "a", b"a\n"),
        (b"a\nb\n", 0, "x", b"x\na\nb\n"),
        (b"a\nb\n", 1, "x\ny", b"a\nx\ny\nb\n"),
        (b"a\nb\n", 2, "x", b"a\nb\nx\n"),
        (b"a\nb", 2, "x", b"a\nb\nx"),
        (b"a\r\nb\r\n", 1, "x\ny", b"a\r\nx\r\ny\r\nb\r\n"),
        (b"a\r\nb", 2, "x", b"a\r\nb\r\nx"),
        (b"a\nb\n", 1, "x\n", b"a\nx\n\nb\n"),
        (b"\xff\n", 1, "x", b"\xff\nx\n"),
    ],
)
async def test_inserted_lines_get_the_line_ends_of_their_place(
    files: Files, before: bytes, line: int, new: str, after: bytes
) -> None:
    await files.sandbox.upload("file", before)
    await files.done("insert", insert_line=line, new_str=new)
    assert await files.sandbox.download("file") == after


async def test_line_ends_are_not_shown(files: Files) -> None:
    await files.sandbox.upload("file", b"a\r\n\xff\r\n")
    assert (await files.done("view")).endswith("     1\ta\n     2\t\ufffd\n")


async def test_only_regular_text_files_of_limited_size_are_accepted(files: Files) -> None:
    await bash(files.sandbox, "cp /bin/true binary; truncate -s 5M huge; mkfifo fifo; ln -s l l")
    await bash(
        files.sandbox, "python3 -c 'print(\"x\\n\" * 2_200_000)' >long; ln -s /dev/zero zero"
    )
    for path, problem in {
        "binary": "is a binary file",
        "huge": "is too large for this tool: more than 4 MB",
        "long": "is too large",
        "fifo": "not a regular file",
        "zero": "not a regular file",
        "l": "symbolic links",
    }.items():
        for command in ("view", "str_replace", "insert"):
            refused = await files.refused(command, path, old_str="x", new_str="y", insert_line=0)
            assert problem in refused, (command, path)
    await files.sandbox.upload("file", b"x")
    grown = await files.refused("str_replace", old_str="x", new_str="y" * (5 << 20))
    assert "too large" in grown
    assert await files.sandbox.download("file") == b"x"


async def test_mode_owner_and_links_are_kept(files: Files) -> None:
    await bash(files.sandbox, "echo x >file; chmod 751 file; ln file hard; ln -s file soft")
    inode = await output(files.sandbox, "stat -c '%i %a %h' file")
    await files.done("str_replace", "soft", old_str="x", new_str="y")
    assert await output(files.sandbox, "stat -c '%i %a %h' file; cat hard; test -L soft") == (
        f"{inode}\ny"
    )


async def test_files_that_may_not_be_written_are_refused(files: Files) -> None:
    await bash(files.sandbox, "echo x >file; chmod 444 file")
    assert "Permission denied" in await files.refused("str_replace", old_str="x", new_str="y")
    assert "Read-only" in await files.refused("create", "../usr/file", file_text="")


async def test_a_full_disk_costs_no_content() -> None:
    async with running("bubblewrap", SandboxLimits(disk_mb=8)) as sandbox:
        files = Files(sandbox, "/workspace")
        await sandbox.upload("file", b"x" * 5000 + b"end\n")
        await bash(sandbox, "head -c 100M /dev/zero >filler")
        grown = "y" * 1_000_000
        refused = await files.refused("str_replace", old_str="end", new_str=grown)
        assert "No space left" in refused
        assert await sandbox.download("file") == b"x" * 5000 + b"end\n"
        assert "No space left" in await files.refused("create", "new", file_text=grown)
        assert await output(sandbox, "ls | cat") == "file\nfiller"


async def test_changes_by_others_are_not_undone(files: Files) -> None:
    await files.sandbox.upload("file", b"a\n")
    await files.done("str_replace", old_str="a", new_str="b")
    await bash(files.sandbox, "echo more >>file")
    assert "was changed since" in await files.refused("undo_edit")
    assert await files.sandbox.download("file") == b"b\nmore\n"


async def test_output_is_bounded(files: Files) -> None:
    await files.sandbox.upload("file", b"0123456789\n" * 10_000)
    result = await files("view")
    assert result.data["truncated"]
    assert "<response clipped>" in result.output
    assert len(result.output) < 4096 / 4 + 300
    await bash(files.sandbox, "mkdir many; cd many; seq 3000 | xargs touch")
    assert "<response clipped>" in await files.done("view", "many")
    problem = await files.refused("str_replace", old_str="nothing " * 10_000)
    assert "<response clipped>" in problem


async def test_history_is_bounded(files: Files) -> None:
    await files.done("create", file_text="x" * 3_000_000 + "0")
    for number in range(8):
        await files.done("str_replace", old_str=f"x{number}", new_str=f"x{number + 1}")
    undone = 0
    while not (await files("undo_edit")).is_error:
        undone += 1
    assert undone == HISTORY_BYTES // 6_000_000
    assert (await files.sandbox.download("file")).endswith(b"x%d" % (8 - undone))


async def test_files_of_the_kernel_are_refused(files: Files) -> None:
    """The editor runs in the sandbox's first process, which may read files that others may not."""
    await output(
        files.sandbox,
        "ln -s /proc/1/maps; ln -s /proc; ln -s /proc/self/fd/1 messages; ln -s loop loop",
    )
    for path in ("maps", "proc/1/maps", "proc/self/status", "proc/1/task/1/status"):
        assert "of the kernel" in await files.refused("view", path), path
    for path in ("proc", "proc/1", "proc/sys/kernel"):
        assert "of the kernel" in await files.refused("view", path), path
    for path in ("messages", "proc/self/fd/1", "proc/self/root/proc/1/maps", "loop"):
        assert "symbolic links" in await files.refused("view", path), path
    change = {"old_str": "1000", "new_str": "0"}
    refused = await files.refused("str_replace", "proc/self/oom_score_adj", **change)
    assert "of the kernel" in refused
    await files.refused("create", "proc/1/new", file_text="text")
    await files.sandbox.upload("file", b"text\n")
    assert "text" in await files.done("view", "../workspace/file")
