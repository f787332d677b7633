"""Configuration of a resources server of NeMo Gym."""

from typing import ClassVar

from prorl_service.tools.spec import ServerSpec


class NemoGymSpec(ServerSpec):
    __slots__ = ()
    KIND: ClassVar[str] = "NeMo Gym"
    FORM: ClassVar[str] = "`--nemo-gym counter=http://host:port`"
    KEY_VARIABLE: ClassVar[str] = "PRORL_NEMO_GYM_KEY_"
