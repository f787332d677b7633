"""The way out of a sandbox, where a task may have one: an HTTP proxy that the service answers."""
