"""The service's side of sandboxes: starts, reaches, limits and ends what runs inside."""
