from tests.server.conftest import engine, settings, url

__all__ = ["engine", "settings", "url"]
