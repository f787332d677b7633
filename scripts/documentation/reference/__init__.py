"""The pages of docs/reference that are made out of the code, one module each."""
