"""One address for several rollout services: a trainer speaks to it as it would to one."""
