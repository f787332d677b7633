"""Users of an image, read from its own list: the libraries of this Python know the host's only."""

import errno
import os
from typing import NamedTuple

LIST = "/etc/passwd"


class Account(NamedTuple):
    user: int
    group: int
    name: str = ""
    home: str = ""
    """Home directory; empty for a user without an entry, whose variables stay as they are."""


def find(user: int | str) -> Account:
    """Returns the user with this number or name. Raises `OSError` for an unknown name.

    As with Docker, `USER:GROUP` and a number without an entry are allowed; a group counts only as
    a number.
    """
    if user == 0 or isinstance(user, int):
        return Account(user, user)
    name, _, group = user.partition(":")
    found = next((one for one in _listed() if name in (one.name, str(one.user))), None)
    if found is None and not name.isdigit():
        raise OSError(errno.ENOENT, f"the image has no user {name!r}")
    account = found or Account(int(name), int(name))
    return account._replace(group=int(group)) if group.isdigit() else account


def set_variables(account: Account) -> None:
    os.environ.update(HOME=account.home, USER=account.name, LOGNAME=account.name)


def _listed() -> list[Account]:
    try:
        with open(LIST, encoding="utf-8", errors="replace") as file:
            lines = [line.rstrip("\n").split(":") for line in file]
    except FileNotFoundError:
        return []
    return [
        Account(int(fields[2]), int(fields[3]), fields[0], fields[5])
        for fields in lines
        if len(fields) >= 6 and fields[2].isdigit() and fields[3].isdigit()
    ]
