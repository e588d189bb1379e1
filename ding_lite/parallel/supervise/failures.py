"""Failures of nodes, and the error that the launcher raises for them."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from ding_lite.clock import SYSTEM_CLOCK
from ding_lite.errors import ConfigError, NodeFailed, PeerLost
from ding_lite.interruption import Terminated
from ding_lite.parallel.network.topology import NodeSpec
from ding_lite.parallel.supervise.node_process import IMPORTING, STARTING, Exited, Failed, Stage

SAME_MOMENT_S = 1.0
"""Failures within this time of the first are reported with it."""
_BY_REQUEST = frozenset({signal.SIGINT, signal.SIGTERM})
_BY_REQUEST_KINDS = frozenset({"KeyboardInterrupt", "SystemExit", Terminated.__name__})


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The failure of one incarnation of a node."""

    spec: NodeSpec
    stage: Stage
    at: float
    what: str
    """The rest of a sentence that begins with the node."""
    kind: str = ""
    traceback: str = ""
    error: BaseException | None = None
    signum: int = 0

    @property
    def may_follow_request(self) -> bool:
        """Whether this may be the effect of a requested end."""
        return self.kind in _BY_REQUEST_KINDS or self.signum in _BY_REQUEST

    @property
    def may_pass(self) -> bool:
        """Whether a restart may help; it cannot if the program cannot be imported."""
        return not self.kind or self.stage not in (STARTING, IMPORTING)

    @property
    def as_cause(self) -> BaseException:
        error = self.error
        if error is None:
            error = NodeFailed(f"{self.kind or 'Node'}: {self.what}", node_id=self.spec.node_id)
        with suppress(Exception):  # its class may refuse notes
            error.add_note(f"on node {self.spec.node_id}")
        return error


def raised(spec: NodeSpec, report: Failed) -> Failure:
    message = f": {report.message}" if report.message else ""
    if report.kind == Terminated.__name__:
        what, traceback = f"was ended by SIGTERM or SIGHUP while {report.stage}", ""
    else:
        what = f"failed while {report.stage}: {report.kind}{message}"
        traceback = report.traceback
    return Failure(
        spec=spec,
        stage=report.stage,
        at=SYSTEM_CLOCK.now(),
        what=what,
        kind=report.kind,
        traceback=traceback,
        error=report.error,
    )


def crashed(spec: NodeSpec, stage: Stage, report: Exited) -> Failure:
    """Make the failure of a node that has ended without a report."""
    what = f"{report.how} while {stage}{report.more}"
    return Failure(spec=spec, stage=stage, at=SYSTEM_CLOCK.now(), what=what, signum=report.signum)


def stopped(spec: NodeSpec, stage: Stage, pid: int | None) -> Failure:
    what = (
        f"(process {pid}) was stopped by SIGSTOP while {stage}, and was killed, as the "
        f"job waited for it alone at its end. SIGCONT continues such a process"
    )
    return Failure(spec=spec, stage=stage, at=SYSTEM_CLOCK.now(), what=what)


def root_failure_error(failures: Sequence[Failure]) -> Exception:
    suspects = [failures[0], *(f for f in failures[1:] if not f.may_follow_request)]
    # The cause of a lost peer may be reported later than the loss.
    own = [failure for failure in suspects if not isinstance(failure.error, PeerLost)]
    first, *others = own or suspects
    others = [other for other in others if other.at - first.at < SAME_MOMENT_S]
    if isinstance(first.error, ConfigError) and not first.may_pass:
        fault = ConfigError(str(first.error))
        fault.__cause__ = first.error
        return fault

    report = first.what.rstrip(".")
    text = f"Node {first.spec.node_id} {report}{'' if report.endswith('?') else '.'}"
    if others:
        also = ", ".join(f"node {other.spec.node_id} {other.what.rstrip('.')}" for other in others)
        text += f" In the same second: {also}."
    if first.spec.incarnation > 1:
        text += f" Restarts of this node before: {first.spec.incarnation - 1}."
    if first.traceback:
        text += f"\n\n{first.traceback.rstrip()}"
    failed = NodeFailed(text, node_id=first.spec.node_id)
    if others:
        causes = [failure.as_cause for failure in (first, *others)]
        failed.__cause__ = BaseExceptionGroup(f"{len(causes)} nodes failed", causes)
    elif first.error is not None:
        failed.__cause__ = first.as_cause
    return failed
