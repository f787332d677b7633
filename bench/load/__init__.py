"""What the service costs under load, next to a bare floor and to others."""
