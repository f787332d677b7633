"""Public addresses, by an own list, and those of IPv4 that are hidden in IPv6.

Python's `is_global` differs between releases, and counts ranges as public that lead to private
addresses: those of translators (NAT64) and of tunnels (6to4, Teredo).
"""

import errno
import ipaddress
import socket
from collections.abc import Iterator

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Range = ipaddress.IPv4Network | ipaddress.IPv6Network

_UNICAST = (ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("2000::/3"))
_NOT_PUBLIC = tuple(
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure answers virtual machines here, as others do at 169.254.169.254
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
        "2001::/23",  # Teredo and other protocols
        "2001:db8::/32",
        "2002::/16",  # 6to4
        "3fff::/20",
    )
)
_MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")
_ENDS_IN_IPV4 = tuple(
    ipaddress.IPv6Network(text)
    for text in ("::/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48")
)


def read_address(text: str) -> Address | None:
    """Returns an address, `::ffff:a.b.c.d` as the IPv4 address that it is; None for other text."""
    try:
        return _plain(ipaddress.ip_address(text))
    except ValueError:
        return None


def read_range(text: str) -> Range:
    """Reads an address or a range such as 192.0.2.0/24. Raises `ValueError`, also for bits behind
    the prefix."""
    found = ipaddress.ip_network(text)
    if isinstance(found, ipaddress.IPv6Network) and found.subnet_of(_MAPPED):
        return ipaddress.IPv4Network((_last_bits(found[0]), found.prefixlen - _MAPPED.prefixlen))
    return found


def forms(address: Address) -> Iterator[Address]:
    """Yields the addresses that may be reached by this one: itself, and what it stands for."""
    address = _plain(address)
    yield address
    if address.is_unspecified:  # connected to, it is the loopback
        yield ipaddress.ip_address("127.0.0.1" if address.version == 4 else "::1")
    elif isinstance(address, ipaddress.IPv6Address) and not address.is_loopback:
        if any(address in one for one in _ENDS_IN_IPV4):
            yield ipaddress.IPv4Address(_last_bits(address))
        if address.sixtofour is not None:
            yield address.sixtofour
        yield from address.teredo or ()


def is_public(address: Address) -> bool:
    return any(address in one for one in _UNICAST) and not any(
        address in one for one in _NOT_PUBLIC
    )


def is_own(address: Address) -> bool:
    """Returns whether the address is one of this host, to which alone a socket can be bound.

    Where `net.ipv4.ip_nonlocal_bind` is set, every address counts as the host's own.
    """
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError as error:
        return error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
    return True


def _plain(address: Address) -> Address:
    mapped = getattr(address, "ipv4_mapped", None)
    return address if mapped is None else ipaddress.IPv4Address(mapped)


def _last_bits(address: ipaddress.IPv6Address) -> int:
    return int(address) & 0xFFFF_FFFF
