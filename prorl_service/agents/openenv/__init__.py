"""The agent `openenv`: environments that OpenEnv servers hold."""
