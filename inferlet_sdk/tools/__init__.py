"""Tools: typed functions that a model may call.

`tool` makes a declaration of a function, `formats` reads calls while they stream, and `declaring` tells a model what
there is in its own template. `inferlet_sdk.chat` puts it together.
"""
