"""Settings: read from the environment or a dict, converted and checked."""

from ding_lite.settings.config import as_config
from ding_lite.settings.environment import Settings

__all__ = ["Settings", "as_config"]
