"""Makes patches against an instance's repository, as a model's sandbox would leave them."""

import io
import re
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path

from prorl_service.sandbox.archives import load_archive
from recipes.swebench.rows import SweInstance

NOTHING = {"notes.txt": "I looked at it.\n"}
"""Files that fix nothing: an empty patch would not be tested."""
NOTHING_PATCH = """\
diff --git a/notes.txt b/notes.txt
new file mode 100644
--- /dev/null
+++ b/notes.txt
@@ -0,0 +1 @@
+I looked at it.
"""


class Checkout:
    """A copy of the repository in `directory`, which is empty. For instances with an archive."""

    def __init__(self, row: SweInstance, directory: Path) -> None:
        assert row.environment.archive is not None
        with tarfile.open(fileobj=io.BytesIO(load_archive(row.environment.archive))) as archive:
            archive.extractall(directory, filter="data")
        inside = Path(row.environment.repository).relative_to(row.environment.unpack_at)
        self.path = directory / inside
        self._row = row

    def patch(self, files: Mapping[str, str | None], *, fixed: bool = False) -> str:
        """Returns a patch that writes these files, or removes them (None); `fixed` adds the
        reference.

        A text that begins with '+' is appended to the file.
        """
        if fixed:
            self.git("apply", stdin=self._row.patch)
        for name, text in files.items():
            self._write(self.path / name, text)
        self.git("add", "-A", "-f")
        options = ("--cached", "--binary", "--full-index", "--no-renames")
        patch = self.git("diff", *options, "HEAD")
        self.git("reset", "-q", "--hard")
        return patch

    def partial(self) -> str:
        """Returns the reference patch without the first half of the lines that it adds."""
        lines = self._row.patch.splitlines(keepends=True)
        added = [n for n, line in enumerate(lines) if re.match(r"\+(?!\+\+ )", line)]
        left_out = added[: (len(added) + 1) // 2]
        half = "".join(line for n, line in enumerate(lines) if n not in left_out)
        self.git("apply", "--recount", stdin=half)
        return self.patch({})

    def git(self, *arguments: str, stdin: str = "") -> str:
        settings = ["-c", "safe.directory=*", "-c", "core.safecrlf=false"]
        command = ["git", *settings, *arguments]
        done = subprocess.run(
            command, cwd=self.path, input=stdin, text=True, check=True, stdout=subprocess.PIPE
        )
        return done.stdout

    def _write(self, path: Path, text: str | None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if text is None:
            path.unlink(missing_ok=True)
        elif text.startswith("+"):
            path.write_text(f"{path.read_text()}\n{text[1:]}")
        else:
            path.write_text(text)
