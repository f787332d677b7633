"""The agent that talks with a simulated user and acts on records."""
