"""How the service starts, reaches, limits and ends what runs inside a sandbox."""
