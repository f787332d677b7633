"""The `prorl` command: `main` names its commands, each in a module of its own."""
