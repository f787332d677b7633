"""Weights that trainers push: kept, agreed on, and given to all engines."""
