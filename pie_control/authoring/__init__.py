"""What `pie` does for authors of inferlets: new programs, checks, tests, and programs outside of the sandbox.

The only package of the control layer that imports the SDK: a program that runs here calls it in this interpreter.
"""
