"""Task directories in Harbor's format, read on the trainer's side: `task.toml` and its files."""
