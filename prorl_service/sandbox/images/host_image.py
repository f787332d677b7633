"""An image of mount points only, in which the host's own programs run: for trials of builders."""

from pathlib import Path

DIRECTORIES = ("usr", "etc", "tmp", "var/tmp", "dev", "proc", "sys", "root")


def make_host_image(image: Path) -> list[str]:
    """Makes the directory. Returns the binds, `PATH:PATH:ro`, that its programs need."""
    for name in DIRECTORIES:
        (image / name).mkdir(parents=True)
    bound = ["/usr"]
    for path in (Path("/", name) for name in ("bin", "lib", "lib32", "lib64")):
        if path.is_symlink():
            (image / path.name).symlink_to(path.readlink())
        elif path.is_dir():
            (image / path.name).mkdir()
            bound.append(str(path))
    return [f"{path}:{path}:ro" for path in bound]
