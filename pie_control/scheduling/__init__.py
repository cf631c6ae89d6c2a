"""Commands, queues, batch and wave formation, policies: pure, without socket, clock or thread."""

from .account import Account
from .policies import Adaptive, DispatchPolicy, DispatchState, Eager, KOnly, TOnly
from .scheduler import Scheduler
from .statistics import SchedulerStatistics
from .values import Completion, Dist, Done, Failed, Logprobs, SamplingParams, TokenValue, Value

__all__ = [
    "Account",
    "Adaptive",
    "Completion",
    "DispatchPolicy",
    "DispatchState",
    "Dist",
    "Done",
    "Eager",
    "Failed",
    "KOnly",
    "Logprobs",
    "SamplingParams",
    "Scheduler",
    "SchedulerStatistics",
    "TOnly",
    "TokenValue",
    "Value",
]
