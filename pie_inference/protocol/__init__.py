"""The wire protocol between the control layer and a worker: messages, codec, version. Imports neither torch nor zmq."""

from .batch import *  # noqa: F403  # all that is public
from .codec import *  # noqa: F403
from .conversation import *  # noqa: F403
from .messages import *  # noqa: F403
from .rows import *  # noqa: F403
