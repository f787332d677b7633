"""The front's directory of services, which its supervisor writes: no other node need see it."""

from collections.abc import Sequence
from pathlib import Path

from prorl_service.front.discovery import (
    DIRECTORY_MODE,
    FILE_MODE,
    SUFFIX,
    Announced,
    Announcements,
)
from prorl_service.ray.members import Member
from prorl_service.ray.plan import State
from prorl_service.utils.files import write_whole


class Directory:
    def __init__(self, path: Path) -> None:
        """Starts with what an earlier supervisor announced. Raises `OSError`."""
        path.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
        self._path = path
        self._announced = dict(Announcements(path).look())

    def announce(self, members: Sequence[Member]) -> None:
        """Announces services that have answered, until they are drained or their node is gone.

        A service that is away for a moment stays: the front knows how to wait. Raises `OSError`.
        """
        wanted: dict[str, str] = {}
        for one in members:
            name, is_serving = one.node.name, one.report.state is State.SERVING
            known = one.report.url if is_serving else self._announced.get(name)
            if known and not one.is_draining and not one.is_gone:
                wanted[name] = known
        if wanted == self._announced:
            return
        for file in self._path.glob(f"*{SUFFIX}"):
            if file.stem not in wanted:
                file.unlink(missing_ok=True)
        for name, url in wanted.items() - self._announced.items():
            self._write(name, url)
        self._announced = wanted

    def _write(self, name: str, url: str) -> None:
        text = Announced(url=url).model_dump_json()
        write_whole(self._path / f"{name}{SUFFIX}", text, mode=FILE_MODE)
