"""What of an agent's work a verifier that shares its files gets, and how it runs among them.

`execd.guard` restores what is named here. Programs that search the current directory before their
own are told not to.
"""

import posixpath
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from prorl_service.agents.harbor import guest_search
from prorl_service.agents.harbor.artifacts import CONVENTION
from prorl_service.agents.harbor.data import HarborData, Step
from prorl_service.agents.harbor.workplace import SHORT_S, Workplace
from prorl_service.sandbox.layers import Guard

NEVER = (
    *(".prorl", "proc", "sys", "dev", "run/prorl", "tests", "solution"),
    *("logs/agent", "logs/verifier", "etc/ld.so.cache", "etc/ld.so.preload"),
)
SEARCH = Path(guest_search.__file__).read_bytes()
SEARCH_DIRECTORY = "/run/prorl/python"
_LOOK = """
( shopt -s dotglob nullglob
printf '%s\\n' "$HOME" "$PATH"
for one in {0}/{{,*/,*/*/}}{{pyvenv.cfg,node_modules}}; do [ ! -e "$one" ] || echo "$one"; done )
"""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What an untouched image has beside the work."""

    workdir: str
    home: str
    search: tuple[str, ...]
    """Directories of its PATH."""
    installed: tuple[str, ...]
    """Directories below the working directory with programs of others: environments of Python, and
    modules of Node."""

    @classmethod
    async def of(cls, workplace: Workplace) -> Self:
        script = _LOOK.format(shlex.quote(workplace.workdir.rstrip("/")))
        home, search, *found = (await workplace.bash(script, SHORT_S)).output.splitlines()
        installed = [one.removesuffix("/pyvenv.cfg") for one in found]
        return cls(workplace.workdir, home, tuple(search.split(":")), tuple(installed))

    def guard(self, data: HarborData, step: Step) -> Guard:
        if not data.guard:
            return Guard(never=NEVER)
        artifacts = [posixpath.join(self.workdir, one.source) for one in step.artifacts]
        inside = [posixpath.join(one, "") for one in (self.workdir, CONVENTION.source)]
        settings = [posixpath.join(self.home, "."), posixpath.join(self.workdir, "__init__.py")]
        return Guard(
            never=NEVER,
            work=_roots([*inside, *artifacts, *data.work]),
            protected=_roots([*settings, *self.installed, *self._programs(), *data.protected]),
            allow=_roots(data.allow),
        )

    def _programs(self) -> list[str]:
        """Returns the trees of PATH's directories that are below the working directory."""
        trees = {one: one.removesuffix("/bin") for one in self.search}
        return [one if tree == self.workdir else tree for one, tree in trees.items()]


def _roots(paths: list[str]) -> tuple[str, ...]:
    """Returns them as a guard has them. The root directory is too much to be one."""
    return tuple(root for path in paths if (root := path.lstrip("/")))


async def pin(workplace: Workplace, *, isolated: bool) -> str:
    """Returns a script by which the verifier's Python takes modules of the image before others."""
    await workplace.sandbox.upload(f"{SEARCH_DIRECTORY}/sitecustomize.py", SEARCH)
    work = shlex.quote(posixpath.join(workplace.workdir, ""))
    lines = [
        f"export {guest_search.WORK}={work}",
        f"export PYTHONPATH={SEARCH_DIRECTORY}${{PYTHONPATH:+:$PYTHONPATH}}",
    ]
    if isolated:
        lines += [f"export PYTHONNOUSERSITE=1 {guest_search.ISOLATED}=1"]
    return "; ".join(lines) + "; "
