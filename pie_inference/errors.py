"""Errors of the inference layer, split by whose fault they are.

InferenceError
├── ConfigError        the operator's fault: a wrong option of the worker
├── CheckpointError    the operator's fault: a model folder that is unreadable, incomplete or not supported
├── KernelsUnavailable nobody's fault: this machine cannot compile or run the CPU kernels; torch serves instead
├── BatchError         the control layer's fault: a command that breaks the protocol; answered with `Failure`
└── RankLost           a process of a group ended, or failed where the others did not: the group ends

`protocol.ProtocolError` (bytes that are no message) and `protocol.options.OptionError` stand beside them.
"""

from __future__ import annotations


class InferenceError(Exception):
    """Base of all errors that this package raises on purpose."""


class ConfigError(InferenceError):
    """A wrong option of the worker."""


class CheckpointError(InferenceError):
    """A model folder that is unreadable, incomplete or not supported. The message names file and tensor."""


class BatchError(InferenceError):
    """A command that breaks the protocol, alone or among others of its batch. It fails; the others run."""


class KernelsUnavailable(InferenceError):
    """This machine cannot compile or run the kernels of `cpu_kernels`. The message says why."""


class RankLost(InferenceError):
    """A process of a group of ranks ended, or failed where the others did not. The group is of no use any more."""
