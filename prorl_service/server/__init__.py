"""HTTP: routes and error bodies. No logic of its own."""
