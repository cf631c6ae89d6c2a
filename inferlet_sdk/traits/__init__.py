"""Every call of the inferlet API under its own name, one module per WIT interface.

Calls on a queue take effect in order. Calls whose result comes later return a `HostFuture` at once: `await` it, or
call `.result()` in a program without asyncio. Refused calls raise a `PieError`.
"""

from inferlet_sdk.traits.allocate import *
from inferlet_sdk.traits.blobs import *
from inferlet_sdk.traits.core import *
from inferlet_sdk.traits.embedding import *
from inferlet_sdk.traits.extensions.forward_with_adapter import *
from inferlet_sdk.traits.extensions.introspective_forward import *
from inferlet_sdk.traits.extensions.state import *
from inferlet_sdk.traits.forward import *
from inferlet_sdk.traits.fused import *
from inferlet_sdk.traits.grammar import *
from inferlet_sdk.traits.input_image import *
from inferlet_sdk.traits.input_text import *
from inferlet_sdk.traits.output_text import *
from inferlet_sdk.traits.outside.children import *
from inferlet_sdk.traits.outside.exports import *
from inferlet_sdk.traits.outside.http import *
from inferlet_sdk.traits.outside.topics import *
from inferlet_sdk.traits.tokenize import *
