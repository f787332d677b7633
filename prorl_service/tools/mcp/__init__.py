"""Tools of MCP servers: what an operator configures, connections, calls."""
