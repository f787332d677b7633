"""The `prorl` command: `main` lists its subcommands, each in a module of its own."""
