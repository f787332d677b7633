"""`prorl cancel`: ends rollouts that nobody needs any more, such as those of somebody who left."""

from prorl_service.cli.service import DEFAULT_URL, Url, connected
from prorl_service.cli.wording import plural
from prorl_service.client import RolloutClient
from prorl_service.errors import ProRLError
from prorl_service.schemas import MAX_IDS_PER_REQUEST, TERMINAL_STATES, RolloutState
from prorl_service.schemas.views import RowFilter

UNFINISHED = [state for state in RolloutState if state not in TERMINAL_STATES]


def cancel(*names: str, client: str | None = None, url: Url = DEFAULT_URL) -> None:
    """Cancel rollouts that have not ended. Those that have stay as they are.

    Parameters
    ----------
    names
        Rollouts, or whole groups; `*` stands for any text in a group's name.
    client
        All rollouts of this submitter.
    """
    if not names and client is None:
        raise ProRLError("nothing to cancel", hint="name rollouts, groups, or `--client NAME`")
    with connected(url) as service:
        found = [one for name in names for one in _named(service, name)]
        if client is not None:
            found += _unfinished(service, RowFilter(client=client, state=UNFINISHED))
        wanted = [*dict.fromkeys(found)]
        for first in range(0, len(wanted), MAX_IDS_PER_REQUEST):
            service.cancel(wanted[first : first + MAX_IDS_PER_REQUEST])
    print(f"{plural(len(wanted), 'rollout')} cancelled")


def _named(service: RolloutClient, name: str) -> list[str]:
    found = _unfinished(service, RowFilter(group_id=name, state=UNFINISHED))
    if not found and name.rpartition(".")[2].isdecimal():
        return [name]
    if not found:
        raise ProRLError(f"no rollout of {name!r} is unfinished", hint="`prorl list` has the names")
    return found


def _unfinished(service: RolloutClient, wanted: RowFilter) -> list[str]:
    return [row.rollout_id for page in service.rollout_pages(wanted) for row in page.rollouts]
