"""`prorl view`: rollouts in the terminal, of a service or of files. Needs the extra `tui`."""

from collections.abc import Sequence
from pathlib import Path

from cyclopts.types import PositiveInt

from prorl_service.cli.conversation import TextOf
from prorl_service.cli.saved_texts import texts
from prorl_service.cli.service import DEFAULT_URL, Url, connected
from prorl_service.client import RolloutClient
from prorl_service.errors import ProRLError
from prorl_service.schemas.views import RolloutRow, RolloutText, RowFilter
from prorl_service.tokens.chat import ChatFormat


def view(
    name: str | None = None,
    /,
    *,
    tokenizer: str | None = None,
    limit: PositiveInt = 500,
    url: Url = DEFAULT_URL,
) -> None:
    """Read rollouts in the terminal, turn by turn.

    Parameters
    ----------
    name
        File, directory or journal, or id of a rollout or group (default: the newest rollouts).
    tokenizer
        Directory or hub name of the model that the rollouts of a file are of, to read its calls.
    limit
        Most rollouts to list.
    """
    try:
        from prorl_service.cli.viewer import Viewer
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "textual":
            raise
        raise ProRLError(
            "prorl view needs textual", hint="pip install 'prorl-service[tui]'"
        ) from None
    if name is not None and Path(name).exists():
        chat = None if tokenizer is None else ChatFormat.load(tokenizer)
        Viewer(*of_file(name, chat, limit)).run()
        return
    with connected(url) as client:
        Viewer(*of_service(client, name, limit)).run()


def of_file(name: str, chat: ChatFormat | None, limit: int) -> tuple[list[RolloutRow], TextOf]:
    """Raises `ProRLError` for a file without rollouts."""
    found: dict[str, RolloutText] = {}
    for text in texts([name], chat):
        found[text.rollout.rollout_id] = text
        if len(found) == limit:
            break
    if not found:
        raise ProRLError(f"{name} has no rollouts")
    rows = [text.rollout for text in found.values()]
    return rows, lambda row: found[row.rollout_id]


def of_service(
    client: RolloutClient, name: str | None, limit: int
) -> tuple[Sequence[RolloutRow], TextOf]:
    """Returns a rollout with its siblings, a group, or the newest rollouts. Raises `ProRLError` if
    none has the name."""

    def rows_of(group_id: str | None) -> list[RolloutRow]:
        pages = client.rollout_pages(RowFilter(group_id=group_id), limit)
        return [row for page in pages for row in page.rollouts]

    rows = rows_of(name)
    if name is not None and not rows:
        row = client.text(name).rollout
        siblings = rows_of(row.group_id)
        rows = [one for one in siblings if one.rollout_id == name]
        rows += [one for one in siblings if one.rollout_id != name]
    if not rows:
        raise ProRLError("the service has no rollouts yet")
    return rows, lambda row: client.text(row.rollout_id, run=row.run)
