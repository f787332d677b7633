"""Tasks in Harbor's format: their directories, their sandboxes, their verifiers."""
