"""A pretrained language model learns on two cores: by tokens, and by text."""
