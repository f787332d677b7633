"""`python -m prorl_verl rollout=prorl ...`: VeRL's stock command with our configuration, unless
another is named."""

import sys

from verl.trainer.main_ppo import main

NAMES = ("--config-name", "-cn")

if __name__ == "__main__":
    if not any(argument.startswith(NAMES) for argument in sys.argv[1:]):
        sys.argv[1:1] = ["--config-name", "prorl_ppo_trainer"]
    main()
