"""What makes the documentation's site, and what counts and checks its pages."""
