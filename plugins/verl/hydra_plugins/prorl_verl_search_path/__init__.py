"""Hydra plug-ins that find `prorl_ppo_trainer` and `rollout=prorl` wherever they are installed."""

from hydra._internal.core_plugins.importlib_resources_config_source import (
    ImportlibResourcesConfigSource,
)
from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.config_source import ConfigResult
from hydra.plugins.search_path_plugin import SearchPathPlugin


class ProRLSearchPath(SearchPathPlugin):  # type: ignore[misc]
    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append(provider="prorl", path="prorl://prorl_verl.config")


class ProRLConfigSource(ImportlibResourcesConfigSource):  # type: ignore[misc]
    """Our configurations. Their `prorl` takes any key: `CheckBeforeStart` names the nearest option
    to one that does not exist, where Hydra would advise to add it with `+`."""

    @staticmethod
    def scheme() -> str:
        return "prorl"

    def load_config(self, config_path: str) -> ConfigResult:
        found = super().load_config(config_path)
        if "prorl" in found.config:
            found.config.prorl._set_flag("struct", False)
        return found
