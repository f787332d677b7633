"""Configuration of an OpenEnv server."""

from typing import ClassVar

from prorl_service.tools.spec import ServerSpec


class OpenEnvSpec(ServerSpec):
    __slots__ = ()
    KIND: ClassVar[str] = "OpenEnv"
    FORM: ClassVar[str] = "`--openenv wordle=http://host:port`"
    KEY_VARIABLE: ClassVar[str] = "PRORL_OPENENV_KEY_"

    @property
    def socket_url(self) -> str:
        """URL of the route that holds one session a connection."""
        return f"ws{self.url.removeprefix('http').rstrip('/')}/ws"
