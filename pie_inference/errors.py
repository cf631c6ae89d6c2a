"""Errors of the inference layer, split by whose fault they are.

InferenceError
├── ConfigError        the operator's fault: a wrong option of the worker
├── CheckpointError    the operator's fault: a model folder that is unreadable, incomplete or not supported
│   └── NotOfFamily    a value that Pie's own code of a family does not support; transformers' code may
├── KernelsUnavailable nobody's fault: this machine cannot compile or run the CPU kernels; torch serves instead
├── AdapterError       the operator's fault: an adapter that is unreadable, or does not fit the model or the memory
├── BatchError         the control layer's fault: a command that breaks the protocol; answered with `Failure`
└── RankLost           a rank of a group ended, or failed where the others did not: the group ends

`protocol.ProtocolError` (bytes that are not a message) and `protocol.options.OptionError` stand beside these.
"""

from __future__ import annotations


class InferenceError(Exception):
    """Base of all errors that this package raises on purpose."""


class ConfigError(InferenceError):
    """A wrong option of the worker."""


class CheckpointError(InferenceError):
    """A model folder that is unreadable, incomplete or not supported. The message names the file and the tensor."""


class AdapterError(InferenceError):
    """An adapter that is unreadable, not supported, or does not fit the model or the memory. It is not loaded."""


class BatchError(InferenceError):
    """A command that breaks the protocol. It fails; the other commands of its batch run."""


class NotOfFamily(CheckpointError):
    """A value of config.json that Pie's own code of a family does not support, and transformers' code may."""


class KernelsUnavailable(InferenceError):
    """This machine cannot compile or run the kernels of `cpu_kernels`. The message says why."""


class RankLost(InferenceError):
    """A rank of a group ended, or failed where the others did not. The group cannot go on."""
