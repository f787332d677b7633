"""Dynamic sampling: `sampler` decides, `runner` does what it says, `manager` has all of them."""
