"""Cost of the service under load, next to a bare floor and to others."""
