"""A trainer's copy of the weights that it has sent: of the next, only the difference is sent.

The copy decides by itself between a difference and the whole file. It is a file in the temporary
directory (TMPDIR), as large as the weights. Knows nothing of tensors.
"""

import logging
import shutil
import time
import weakref
from collections.abc import Iterator
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from typing import Protocol

from prorl_service.client.calls import Piece
from prorl_service.client.errors import ServiceCallError
from prorl_service.client.http import RolloutClient
from prorl_service.schemas import WeightsReport
from prorl_service.utils import differences, files

logger = logging.getLogger(__name__)

WHOLE_EVERY = 100
"""Pushes after which a whole file is sent again."""
REST = 50
"""Pushes without a copy, after those with one were slower or the disk was full."""
FIRST_DIFFERENCES = 3
"""Differences after which their times are compared with that of a whole file."""
PIECE_BYTES = 4 * 2**20


class WeightsContent(Protocol):
    """The bytes of a file of weights. Each iteration makes them again."""

    def __iter__(self) -> Iterator[Piece]: ...

    def write(self, path: Path) -> None:
        """Writes them to a new file. Raises `OSError`."""


class WeightsCopy:
    def __init__(self) -> None:
        self._directory: Path | None = None
        self._digest = ""
        """SHA-256 of the copy; "" if there is none."""
        self._whole_s = 0.0
        """Time that the last whole file took."""
        self._differences_s: list[float] = []
        """Times that the differences since then took, comparing included."""
        self._rest = 0

    def send(
        self, client: RolloutClient, content: WeightsContent, *, base: str, after: int
    ) -> WeightsReport:
        """Sends weights over HTTP. `base`: from `WeightsTerms`. Raises `ServiceCallError`."""
        if self._rest:
            self._rest -= 1
            return client.stream_weights(content, after=after)
        began_at = time.monotonic()
        try:
            new = self._write(content)
            report = self._send_difference(client, new, base, after) if self._is_due(base) else None
        except OSError as error:
            self._pause(f"no copy of the weights can be kept: {error.strerror}")
            return client.stream_weights(content, after=after)
        if report is not None:
            self._differences_s.append(time.monotonic() - began_at)
        else:
            report = self._send_whole(client, new, after)
        new.replace(new.with_name("copy"))
        if self._is_slower():
            self._pause("differences of weights take longer to make than whole files to send")
        return report

    def _write(self, content: WeightsContent) -> Path:
        if self._directory is None:
            files.remove_stale_tempdirs()
            self._directory = files.temporary_directory("weights")
            weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)
        new = self._directory / "new"
        new.unlink(missing_ok=True)
        content.write(new)
        return new

    def _is_due(self, base: str) -> bool:
        is_scheduled = len(self._differences_s) >= WHOLE_EVERY
        return bool(base) and base == self._digest and not is_scheduled

    def _send_difference(
        self, client: RolloutClient, new: Path, base: str, after: int
    ) -> WeightsReport | None:
        """Returns None if the whole file is to be sent."""
        difference = new.with_name("difference")
        difference.unlink(missing_ok=True)
        digest = differences.write(new.with_name("copy"), new, difference)
        if digest is None:
            return None
        try:
            report = client.stream_weights(_FileContent(difference), after=after, base=base)
        except ServiceCallError as error:
            if error.http_status != HTTPStatus.PRECONDITION_FAILED:
                raise
            return None
        self._digest = digest
        return report

    def _send_whole(self, client: RolloutClient, new: Path, after: int) -> WeightsReport:
        began_at, content = time.monotonic(), _FileContent(new)
        report = client.stream_weights(content, after=after)
        self._whole_s, self._differences_s = time.monotonic() - began_at, []
        self._digest = content.digest
        return report

    def _is_slower(self) -> bool:
        count = len(self._differences_s)
        return count >= FIRST_DIFFERENCES and sum(self._differences_s) > count * self._whole_s

    def _pause(self, reason: str) -> None:
        logger.info("%s: %d pushes are sent whole", reason, REST)
        self._rest, self._digest, self._differences_s = REST, "", []
        if self._directory is not None:
            for path in self._directory.iterdir():
                path.unlink()


class _FileContent:
    """A file in pieces."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.digest = ""
        """SHA-256 of the file, once it was read."""

    def __iter__(self) -> Iterator[bytes]:
        digest = sha256()
        with self._path.open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                digest.update(piece)
                yield piece
        self.digest = digest.hexdigest()
