"""Hydra plug-in for finding `prorl_ppo_trainer` and `rollout=prorl` wherever it is installed."""

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin


class ProRLSearchPath(SearchPathPlugin):  # type: ignore[misc]
    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append(provider="prorl", path="pkg://prorl_verl.config")
