"""Rules of the operator and of a task for what a sandbox may reach."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator

from prorl_service.sandbox.egress import addresses
from prorl_service.sandbox.egress.addresses import Address, Range

WEB_PORTS = frozenset({80, 443})
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
MAX_NAME = 253


@dataclass(frozen=True, slots=True)
class Rules:
    """What the operator says for all tasks."""

    deny: Sequence[Range] = ()
    """Ranges that no task reaches, whatever it names."""
    ports: frozenset[int] = WEB_PORTS


@dataclass(frozen=True, slots=True)
class EgressPolicy:
    """What one sandbox may reach."""

    mode: Literal["allowlist", "public"]
    hosts: Sequence[str] = ()
    """Names, `*.NAME` for its subdomains, addresses, ranges; each as `checked_entry` returns it."""
    rules: Rules = Rules()

    def allows_name(self, host: str) -> bool:
        """Returns whether a host may be looked up at all."""
        if self.mode == "public":
            return True
        address = addresses.read_address(host)
        if address is not None:
            return self._names(address)
        return any(_matches(host, entry) for entry in self.hosts)

    def allows_address(self, address: Address) -> bool:
        """Returns whether an address that an allowed name stands for may be connected to."""
        return all(self._allows(form) for form in addresses.forms(address))

    def _allows(self, address: Address) -> bool:
        if any(address in one for one in self.rules.deny):
            return False
        if self._names(address):
            return True
        return addresses.is_public(address) and not addresses.is_own(address)

    def _names(self, address: Address) -> bool:
        return any(address in one for one in map(_range, self.hosts) if one is not None)


def checked_entry(text: str) -> str:
    """Returns an entry of `allowed_hosts` as it is compared. Raises `ValueError`, as Harbor does,
    for URLs, ports, and wildcards other than a leading `*.`."""
    entry = text.strip().lower().rstrip(".")
    if "/" in entry or ":" in entry:
        found = _range(entry)
        if found is None or "%" in entry:
            raise ValueError(
                f"{text!r}: not a URL, a port or a path; a host name, an address, or a range"
                " without bits behind its prefix"
            )
        return str(found) if "/" in entry else str(found.network_address)
    name = entry.removeprefix("*.")
    if "*" in name:
        raise ValueError(f"{text!r}: a wildcard is a leading '*.'")
    if name != entry and addresses.read_address(name) is not None:
        raise ValueError(f"{text!r}: a wildcard is for names, not for addresses")
    if len(name) > MAX_NAME or not all(map(_LABEL.fullmatch, name.split("."))):
        raise ValueError(f"{text!r}: not a host name, an address or a range")
    return entry


HostEntry = Annotated[str, AfterValidator(checked_entry)]


def _matches(host: str, entry: str) -> bool:
    return host.endswith(entry[1:]) if entry.startswith("*.") else host == entry


def _range(text: str) -> Range | None:
    try:
        return addresses.read_range(text)
    except ValueError:
        return None
