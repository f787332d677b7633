"""`docs/reference/tested_with.md`: releases of everything that works beside the service."""

from prorl_service.gateway.harnesses import preset
from prorl_service.neighbours import Neighbour, neighbours

PAGE = """\
# Tested with

What works beside the service, and how we know. `prorl doctor` says which of these are installed,
and which are outside their range. A trainer, an engine or a Harbor outside its range is refused, or
warned of where it may work, with the range in the message. `make neighbours` unpacks the newest
release of each, and looks up what we use of it: names, parameters, fields, routes.

| beside it | releases | newest seen to work | how it is tested |
|---|---|---|---|
{neighbours}

A narrower range holds for: {parts}.

## Harnesses

`prorl harnesses install NAME` installs the release in the table; `NAME@VERSION` another one.

| harness | release | |
|---|---|---|
{harnesses}
"""


def page() -> str:
    known = neighbours().values()
    parts = [
        f"{part} of {one.title} (`{limit}`)" for one in known for part, limit in one.parts.items()
    ]
    return PAGE.format(
        neighbours="\n".join(map(_row, known)),
        parts=", ".join(parts),
        harnesses="\n".join(_harness(name) for name in preset.names() if _is_own(name)),
    )


def _row(one: Neighbour) -> str:
    return f"| {one.title} | `{one.tested}` | {one.newest} | {one.by} |"


def _harness(name: str) -> str:
    found = preset.load(name)
    return f"| `{name}` | {found.install.version} | {found.about} |"


def _is_own(name: str) -> bool:
    """Returns whether it has packages of its own: variants run those of another preset."""
    install = preset.load(name).install
    return bool(install.npm or install.pip) and install.tree is None
