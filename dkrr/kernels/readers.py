"""What reads descriptions of kernels and of feature maps alike; nothing is imported, unpickled or evaluated."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dkrr.errors import InputError, InputTypeError
from dkrr.values import shown


@dataclass(frozen=True)
class Reader:
    """Values from their descriptions, and what descriptions name and do not hold."""

    kinds: Mapping[str, Callable[[Mapping[str, Any], Reader], Any]]
    """From the key that names a value, such as "kernel", to what reads its description."""
    callables: Mapping[str, Any]
    """Functions, and users' own feature maps and classes, by name."""
    arrays: Mapping[str, Any]
    """Arrays by checksum."""
    warns: bool = True
    """Whether functions and classes whose source text has changed give a warning."""

    @classmethod
    def of(cls, kinds: Mapping[str, Any], callables: Any, arrays: Any) -> Reader:
        """Reader with what a user gives for functions and arrays: mappings, or None."""
        for name, given in (("callables", callables), ("arrays", arrays)):
            if given is not None and not isinstance(given, Mapping):
                raise InputTypeError(
                    f"{name} is {shown(given)}; expected a mapping from names in descriptions, or None"
                )
        return cls(kinds, callables or {}, arrays or {})

    def read(self, description: Any) -> Any:
        """The array, or the value of any kind, that is described."""
        if isinstance(description, Mapping):
            if "array" in description:
                return self._array(description["array"])
            for kind, read in self.kinds.items():
                if isinstance(description.get(kind), str):
                    return read(description, self)
        expected = " or ".join(f'{{"{kind}": name, ...}}' for kind in self.kinds)
        raise InputError(f"the description is {shown(description)}; expected {expected}")

    def settings(self, description: Mapping[str, Any], kind: str | None = None) -> dict[str, Any]:
        """Parameters in a description of this kind, those that are described themselves as values."""
        return {
            key: self.read(value) if isinstance(value, Mapping) else value
            for key, value in description.items()
            if key != kind
        }

    def given(self, description: Mapping[str, Any], what: str) -> tuple[str, Any]:
        """The name in a description, and what was given under it."""
        name = description.get("name")
        if not isinstance(name, str):
            raise InputError(f"the description of a {what} is {dict(description)!r}; expected one with a name")
        if name not in self.callables:
            raise InputError(
                f"the custom {what} {name!r} is missing, and files never hold code; expected it to be given again: "
                "dkrr.load(path, kernel=...)"
            )
        return name, self.callables[name]

    def read_whole(self, description: Any, read: Callable[[Any, Reader], Any]) -> Any:
        """What a description as a whole makes; one that contains itself, or thousands of others, is refused."""
        try:
            return read(description, self)
        except RecursionError:
            raise InputError(
                "the description nests without end; expected a kernel or a feature map of few parts"
            ) from None

    def _array(self, checksum: Any) -> Any:
        if not isinstance(checksum, str) or checksum not in self.arrays:
            raise InputError(f"the array {shown(checksum)} of a description is missing; expected it in `arrays`")
        return self.arrays[checksum]

    def check_source(self, description: Mapping[str, Any], digest: str, what: str) -> None:
        """Warn if a function or class that was given again differs from the one that was described."""
        if self.warns and digest != description.get("digest"):
            warnings.warn(
                f"the {what} given for {description['name']!r} has another source text than the one that was saved; "
                "results are right only if it computes the same",
                UserWarning,
                stacklevel=6,  # the caller of kernel_from_dict or feature_map_from_dict
            )
