"""The application of the Python guest component: what componentize-py builds from.

The interpreter is initialised at build time and stored in the component, with everything that has been imported here: so a
launch pays for no import. Modules that are not imported here do not exist in the sandbox.
"""

from __future__ import annotations

import abc
import array
import asyncio
import base64
import binascii
import bisect
import calendar
import cmath
import collections
import collections.abc
import colorsys
import contextlib
import contextvars
import copy
import csv
import dataclasses
import datetime
import decimal
import difflib
import enum
import fractions
import functools
import gc
import hashlib
import heapq
import hmac
import html
import inspect
import io
import itertools
import json
import keyword
import linecache
import logging
import math
import numbers
import operator
import pprint
import queue
import random
import re
import secrets
import statistics
import string
import struct
import sys
import textwrap
import time
import traceback
import types
import typing
import unicodedata
import urllib.parse
import uuid
import warnings
import weakref
import zlib

import wit_world  # type: ignore[import-not-found]
from componentize_py_types import Err  # type: ignore[import-not-found]

import inferlet_sdk
from inferlet_sdk import bindings, event_loop
from inferlet_sdk.program import ProgramFailed, run_program


class WitWorld(wit_world.WitWorld):  # type: ignore[misc]
    """The exports of the component."""

    def run(self) -> None:
        """Runs the program that the host hands over."""
        try:
            run_program(*bindings.guest_source.source())
        except ProgramFailed as failure:
            raise Err(str(failure)) from None


event_loop.install()

# The snapshot's 20,000 objects live for ever. Unless frozen, the garbage collector of every instance would visit them all
# (15 ms), and write to (so copy) their pages of memory.
gc.collect()
gc.freeze()
