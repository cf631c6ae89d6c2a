"""The fields of a request, each read by its name and checked. `null` is a field that is not there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from inferlet_sdk.served.errors import Refused
from inferlet_sdk.traits.outside.blobs import Blob

MOST = 2**31 - 1
MOST_PRIORITY = 10


class Fields:
    """A JSON object of a request. `path` is where it stands, for messages."""

    def __init__(self, values: Mapping[str, Any], path: str = "") -> None:
        self.values = values
        self._path = path

    @classmethod
    def of_launch(cls) -> Fields:
        """The body of the request that has launched this inferlet: the blob `request`."""
        with Blob.open("request") as blob:
            data = blob.read()
        try:
            body = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise Refused(f"the body is not JSON: {error}") from None
        if not isinstance(body, dict):
            raise Refused(f"the body must be a JSON object, not {_told(body)}")
        return cls(body)

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def param(self, name: str) -> str:
        """How an error calls a field."""
        return f"{self._path}{name}"

    def wrong(self, name: str, wanted: str) -> Refused:
        """The refusal of a field that is not what it should be."""
        param = self.param(name)
        return Refused(f"{param}: must be {wanted}, not {_told(self.values.get(name))}", param)

    def refuse(self, name: str, reason: str) -> Refused:
        """The refusal of a field that cannot be served."""
        param = self.param(name)
        return Refused(f"{param}: {reason}", param, code="unsupported_parameter")

    def get(self, name: str) -> Any:
        """Any value."""
        return self.values.get(name)

    def whole(self, name: str, least: int = 0, most: int = MOST, default: int = 0) -> int:
        """A whole number."""
        value = self.values.get(name)
        if value is None:
            return default
        if not _is_whole(value) or not least <= value <= most:
            raise self.wrong(name, f"a whole number from {least} to {most}")
        return int(value)

    def number(self, name: str, least: float, most: float, default: float) -> float:
        """A number."""
        value = self.values.get(name)
        if value is None:
            return default
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not least <= value <= most:
            raise self.wrong(name, f"a number from {least:g} to {most:g}")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def text(self, name: str, default: str = "") -> str:
        """A text."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.wrong(name, "a text")
        return value

    def one_of(self, name: str, options: tuple[str, ...], default: str) -> str:
        """One of several words."""
        value = self.values.get(name)
        if value is None:
            return default
        if value not in options:
            raise self.wrong(name, f"one of {', '.join(options)}")
        return str(value)

    def kind(self, options: tuple[str, ...]) -> str:
        """The `type` of an object: the first option if it is empty; one that is not has to say."""
        if self.values and "type" not in self:
            raise self.wrong("type", f"one of {', '.join(options)}")
        return self.one_of("type", options, options[0])

    def object(self, name: str) -> Fields:
        """An object; an empty one if the field is not there."""
        value = self.values.get(name)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise self.wrong(name, "an object")
        return Fields(value, f"{self.param(name)}.")

    def objects(self, name: str) -> list[Fields]:
        """A list of objects."""
        value = self.values.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.wrong(name, "a list of objects")
        for place, one in enumerate(value):
            if not isinstance(one, dict):
                param = f"{self.param(name)}[{place}]"
                raise Refused(f"{param}: must be an object, not {_told(one)}", param)
        return [Fields(one, f"{self.param(name)}[{place}].") for place, one in enumerate(value)]

    def texts(self, name: str) -> list[str]:
        """A text, or a list of texts."""
        value = self.values.get(name)
        given = [] if value is None else [value] if isinstance(value, str) else value
        if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
            raise self.wrong(name, "a text or a list of texts")
        return given

    def tokens(self, name: str) -> list[int]:
        """A list of token ids."""
        value = self.values.get(name)
        if value is None:
            return []
        if (tokens := tokens_of(value)) is None:
            raise self.wrong(name, "a list of token ids")
        return tokens

    def seed(self, name: str) -> int | None:
        """A whole number of any size, of which 64 bits count."""
        value = self.values.get(name)
        if value is None:
            return None
        if not _is_whole(value):
            raise self.wrong(name, "a whole number")
        return int(value) % 2**64

    def check_priority(self) -> None:
        """Refuses a `priority` that the server, which has read it before the launch, could not go by."""
        self.whole("priority", -MOST_PRIORITY, MOST_PRIORITY)

    def allow_only(self, name: str, served: tuple[Any, ...], reason: str) -> None:
        """Refuses a field unless it has one of the values that change nothing."""
        value = self.values.get(name)
        if value is not None and not any(value == one and type(value) is type(one) for one in served):
            raise self.refuse(name, reason)


def tokens_of(value: Any) -> list[int] | None:
    """The token ids that a list has; None for any other value."""
    if not isinstance(value, list) or not all(_is_whole(one) and 0 <= one <= MOST for one in value):
        return None
    return [int(one) for one in value]


def _is_whole(value: Any) -> bool:
    """Whether a value is a whole number. JSON Schema calls 3.0 an integer, too."""
    return type(value) is int or (type(value) is float and value.is_integer())


def _told(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
