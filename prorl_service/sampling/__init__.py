"""Dynamic sampling: `sampler` decides, `runner` carries that out, `manager` has all runners."""
