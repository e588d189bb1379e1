"""Names under the import paths of DI-engine: `ding_lite.framework.wrapper.StepTimer`."""

from ding_lite.runtime.wrappers import StepTimer, Trace

__all__ = ["StepTimer", "Trace"]
