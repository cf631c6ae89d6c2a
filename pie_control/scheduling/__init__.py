"""Queues, forming of waves, policies: pure, without socket, clock or thread. Knows no call by name."""

from .policies import Adaptive, DispatchPolicy, DispatchState, Eager, KOnly, TOnly
from .scheduler import Scheduler
from .statistics import SchedulerStatistics
from .turn import Closed, Ending, Event, HostQuiet, Opened, Progress, Reason, RunTokens, Turn, WorkerLost

__all__ = [
    "Adaptive",
    "Closed",
    "DispatchPolicy",
    "DispatchState",
    "Eager",
    "Ending",
    "Event",
    "HostQuiet",
    "KOnly",
    "Opened",
    "Progress",
    "Reason",
    "RunTokens",
    "Scheduler",
    "SchedulerStatistics",
    "TOnly",
    "Turn",
    "WorkerLost",
]
