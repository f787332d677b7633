"""The editor tool that SWE agents know: view, create, str_replace, insert and undo_edit.

The arguments that a command needs are checked inside the sandbox, which also writes the answers. A
picture is viewed as one.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from prorl_service.sandbox.base import Sandbox, ToolResult
from prorl_service.tools.view_image import picture_in

PICTURES = (".png", ".jpg", ".jpeg", ".gif", ".webp")
"""Ends of the names of pictures."""


class EditorArguments(BaseModel):
    model_config = ConfigDict(extra="forbid")

    command: Literal["view", "create", "str_replace", "insert", "undo_edit"] = Field(
        description="The command to run."
    )
    path: str = Field(
        description="Absolute path to a file or directory, e.g. `/workspace/file.py`."
    )
    file_text: str | SkipJsonSchema[None] = Field(
        None, description="Required by `create`: the content of the new file."
    )
    old_str: str | SkipJsonSchema[None] = Field(
        None,
        description="Required by `str_replace`: the text in `path` to replace. It must match"
        " exactly one place of the file, whitespace included.",
    )
    new_str: str | SkipJsonSchema[None] = Field(
        None,
        description="Required by `insert`: the lines to insert. Optional for `str_replace`: the"
        " text to put in place of `old_str`; without it `old_str` is removed.",
    )
    insert_line: int | SkipJsonSchema[None] = Field(
        None,
        description="Required by `insert`: `new_str` is inserted after this line; 0 is the start"
        " of the file.",
    )
    view_range: list[int] | SkipJsonSchema[None] = Field(
        None,
        description="Optional for `view` of a file: the first and the last line to show, counted"
        " from 1. `[11, 12]` shows lines 11 and 12, `[11, -1]` shows all from line 11.",
    )


class StrReplaceEditor:
    name = "str_replace_editor"
    description = (
        "View, create and edit text files.\n"
        "* `view` shows a file with line numbers, as `cat -n` does, or the non-hidden files and"
        " directories of a directory, up to 2 levels deep. Long output is clipped.\n"
        "* `create` makes a new file; it cannot overwrite an existing one.\n"
        "* `str_replace` replaces `old_str`, which must match one or more consecutive lines"
        " exactly and be unique in the file. Give enough context to make it unique.\n"
        "* `insert` puts lines after a given line.\n"
        "* `undo_edit` reverts the last edit made to the file at `path`."
    )
    arguments = EditorArguments
    may_repeat = True

    async def call(
        self, sandbox: Sandbox, arguments: EditorArguments, *, timeout_s: float
    ) -> ToolResult:
        if arguments.command == "view" and arguments.path.lower().endswith(PICTURES):
            return await picture_in(sandbox, arguments.path)
        call = arguments.model_dump(exclude_none=True)
        return await sandbox.call_tool(self.name, call, timeout_s=timeout_s)
