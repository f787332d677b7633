"""`prorl token`: the token of this user's services on this machine."""

import os

from prorl_service.net.credentials import TOKEN_VARIABLE, make_own_token


def token() -> None:
    """Print the token of your services on this machine, for curl and for clients elsewhere."""
    print(os.environ.get(TOKEN_VARIABLE) or make_own_token())
