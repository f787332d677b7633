"""Environments of OpenEnv servers: what an operator configures, sessions, tools."""
