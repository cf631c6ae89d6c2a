"""Configuration of the server: one frozen object, built once at the edge from options and environment.

Each setting of `ServerConfig`, `InferletLimits` and `WorkerOptions` is an option of `pie serve` and `pie run`
(`max_pages`: `--max-pages`) and an environment variable (`PIE_MAX_PAGES`); an option beats the variable, the variable
beats the default.
"""

from pie_control.config.paths import SHIPPED, AdapterPath, ModelPath, find_accounts, find_model
from pie_control.config.reading import ENVIRONMENT_PREFIX, LISTEN_VARIABLE, build_config
from pie_control.config.settings import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    DEFAULT_SERVER,
    JSON,
    MIB,
    InferletLimits,
    ServerConfig,
    default_hosts,
    settings,
)

__all__ = [
    "DEFAULT_HOST",
    "DEFAULT_PORT",
    "DEFAULT_SERVER",
    "ENVIRONMENT_PREFIX",
    "JSON",
    "LISTEN_VARIABLE",
    "MIB",
    "SHIPPED",
    "AdapterPath",
    "InferletLimits",
    "ModelPath",
    "ServerConfig",
    "build_config",
    "default_hosts",
    "find_accounts",
    "find_model",
    "settings",
]
