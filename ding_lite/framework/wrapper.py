"""The doorway of seed-era programs: `from ding_lite.framework.wrapper import StepTimer`."""

from ding_lite.runtime.wrappers import StepTimer, Trace

__all__ = ["StepTimer", "Trace"]
