"""Addresses that an operator writes. Nothing here connects to them."""

from urllib.parse import urlsplit


def is_base_url(text: str) -> bool:
    """Whether `text` is an HTTP URL that paths can follow: no query, and no key in it."""
    try:
        parts = urlsplit(text)
        is_usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        return False
    return bool(is_usable) and "@" not in parts.netloc and not (parts.query or parts.fragment)
