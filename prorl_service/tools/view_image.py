"""The view_image tool: shows a picture of the sandbox to a policy that sees pictures."""

import base64

from pydantic import BaseModel, ConfigDict, Field

from prorl_service.sandbox.base import Sandbox, ToolResult
from prorl_service.schemas.pictures import MAX_BYTES


class ViewImageArguments(BaseModel):
    model_config = ConfigDict(extra="forbid")

    path: str = Field(description="Path of a PNG, JPEG, GIF or WebP file.")


class ViewImage:
    name = "view_image"
    description = "Look at an image file."
    arguments = ViewImageArguments
    may_repeat = True

    async def call(
        self, sandbox: Sandbox, arguments: ViewImageArguments, *, timeout_s: float
    ) -> ToolResult:
        return await picture_in(sandbox, arguments.path)


async def picture_in(sandbox: Sandbox, path: str) -> ToolResult:
    """Returns a file of the sandbox as a picture."""
    try:
        content = await sandbox.download(path, max_bytes=MAX_BYTES)
    except OSError as error:
        return ToolResult(f"{path}: {error.strerror}", is_error=True)
    return ToolResult("", data={"images": [{"base64": base64.b64encode(content).decode()}]})
