"""Kernels that come from outside: a function of blocks, also of Python objects, and a Gram matrix computed beforehand.

An object is a row of numbers: the UTF-8 text of its JSON, one byte per column, plus 1 so that none is 0. All rows have
one width, so that new ones fit those of the training data. Nothing is pickled: objects are returned as JSON decodes
them (a tuple becomes a list, a key a string).
"""

import functools
import hashlib
import inspect
import json
import math
import tokenize
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import ModuleType
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dkrr.checks import flag, refuse_masked, shown
from dkrr.errors import DkrrError, InputError, InputTypeError, KernelFunctionError
from dkrr.kernels.base import Kernel
from dkrr.kernels.blocks import (
    Block,
    Fill,
    FloatArray,
    as_buffer,
    as_rows,
    check_symmetric,
    is_sparse,
    mirror_lower,
    read_only,
    strips,
)
from dkrr.rounding import check_exact
from dkrr.text import plural

OBJECT_WIDTH = 2**31 - 1
"""Columns of the rows: a bound of the bytes of an object."""


def is_objects(X: Any) -> bool:
    """Whether data are objects, and not numbers in some container."""
    if not is_container(X):
        return False
    if hasattr(X, "columns"):
        return any(getattr(kind, "kind", "O") not in "biuf" for kind in X.dtypes) and not _are_numbers(X)
    if isinstance(X, list | tuple):
        # Not by NumPy, whose strings all take as much memory as the longest.
        if any(isinstance(item, str | dict | None) for item in X):
            return True
        try:
            return np.asarray(X).dtype.kind not in "biufc"
        except ValueError:  # lists of different lengths
            return True
    kind = getattr(X.dtype, "kind", "O")
    if kind == "O" and len(X.shape) == 2:
        return not _are_numbers(X)
    return kind not in "biufc"


def is_container(X: Any) -> bool:
    """Whether data are a sequence in memory: a list, an array, a Series or a table."""
    return isinstance(X, list | tuple | np.ndarray) or hasattr(X, "columns") or hasattr(X, "to_list")


def _are_numbers(X: Any) -> bool:
    try:
        np.asarray(X, np.float64)
    except (TypeError, ValueError):
        return False
    return True


def encode_objects(X: Any) -> Any:
    """CSR rows (n, OBJECT_WIDTH), uint16, for a sequence of values of JSON, or a DataFrame, whose rows become dicts."""
    items = X.to_dict("records") if hasattr(X, "columns") else X.tolist() if hasattr(X, "tolist") else list(X)
    if not items:
        raise InputError("X is empty; expected at least 1 object")
    rows = []
    for number, item in enumerate(items):
        try:
            text = json.dumps(item, default=_plain, allow_nan=True, ensure_ascii=False)
        except (TypeError, ValueError) as error:
            raise InputTypeError(
                f"object {number} of X is a {type(item).__qualname__}, which cannot be stored ({error}); expected "
                "strings, numbers, None, or lists and dicts of them: convert it, or use rows of numbers"
            ) from error
        rows.append(np.frombuffer(text.encode(errors="surrogatepass"), np.uint8))
    lengths = [len(row) for row in rows]
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    data = np.concatenate(rows).astype(np.uint16) + np.uint16(1)
    indices = np.concatenate([np.arange(k, dtype=np.int64) for k in lengths])
    return sp.csr_array((data, indices, starts), shape=(len(rows), OBJECT_WIDTH))


def _as_given(rows: Block) -> Block:
    """Rows of numbers as a function gets them: of float32 ones it would compute in float32."""
    return read_only(rows.astype(float, copy=False))


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__qualname__} is not a type of JSON")


def decode_objects(rows: Any) -> list[Any]:
    """Objects of some rows that `encode_objects` made."""
    data = (np.asarray(rows.data).astype(np.int64) - 1).astype(np.uint8).tobytes()
    starts = rows.indptr
    return [json.loads(data[a:b].decode(errors="surrogatepass")) for a, b in pairwise(starts)]


# Rows passed at once to a function for a diagonal: few, since it computes all their pairs.
DIAGONAL_ROWS = 16
# Assumed size of an object, in columns of 8 bytes.
OBJECT_BYTES = 512
ALONE_ROWS = 8
"""Rows of a block that are passed to a function once more, as a separate block."""
ALONE_TOLERANCE = 1e-3
"""Largest difference of their entries, relative to the largest one: products in float32 differ in blocks of other
sizes."""


@dataclass(frozen=True)
class FunctionCost:
    """Measured time and memory of a kernel function for a block of (n_rows, n_columns)."""

    seconds: float
    """Time of an entry, on one core."""
    entry_bytes: float
    """Peak memory for each entry, the result included."""
    row_bytes: float
    """Peak memory for each row and each column of the block besides that."""
    rows: int
    """Rows of the largest block that was measured."""


@dataclass(frozen=True)
class CallableKernel(Kernel):
    """A kernel given as a function of two blocks of rows.

    Parameters
    ----------
    function : callable
        ``function(X, Y)`` returns all k(x, z) as an (n_rows, n_columns) array of real numbers. It has to be
        symmetric, k(x, z) = k(z, x), and its entries must not depend on the other rows of the block, as those do that
        are divided by the block's maximum; both are checked. X and Y are read-only; flags count as 0 and 1.
        (scikit-learn's takes one pair of rows and returns one number.) Where the data are objects (strings, or
        anything that JSON can say; rows of a DataFrame with text come as dicts) X and Y are lists of them.
    name : str, optional
        Name in messages and descriptions; None means the function's qualified name.
    cost : FunctionCost, optional
        What it was measured to need, before a fit is planned; not a part of what the kernel is.
    takes_objects : bool, default=False
        Whether the rows stand for objects; `fitted` sets it.

    See Also
    --------
    dkrr.kernels.Kernel : Base class of kernels.
    dkrr.kernels.Precomputed : X is the Gram matrix itself.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr.kernels import CallableKernel
    >>> def quadratic(X, Y):
    ...     return (X @ Y.T) ** 2
    >>> CallableKernel(quadratic)(np.array([[1.0, 1.0]]), np.array([[2.0, 1.0]]))
    array([[9.]])
    """

    tag: ClassVar[str] = "callable"
    _takes_csr: ClassVar[bool] = True
    _follows_entries: ClassVar[bool] = False

    function: Callable[..., Any]
    name: str | None = None
    takes_objects: bool = field(default=False, kw_only=True)
    cost: FunctionCost | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not callable(self.function) or isinstance(self.function, type):
            raise InputTypeError(f"function {shown(self.function)} is not callable; expected one of blocks (X, Y)")
        object.__setattr__(self, "name", checked_name(self.name, self.function))
        object.__setattr__(self, "takes_objects", flag(self.takes_objects, "takes_objects"))
        if self.cost is not None and not isinstance(self.cost, FunctionCost):
            raise InputTypeError(f"cost is {shown(self.cost)}; expected what a plan has measured, or None")

    @property
    def functions(self) -> tuple[Any, ...]:
        return (self,)

    def digest(self) -> str:
        """SHA-256 of the function's source and of what it has bound."""
        return identity_of(self.function)

    def nominal_seconds(self, n_features: int) -> float:
        """See base class: what was measured, if anything was."""
        return super().nominal_seconds(n_features) if self.cost is None else self.cost.seconds

    def fitted(self, X: Any) -> Kernel:
        return replace(self, takes_objects=True) if is_objects(X) else self

    def encode(self, X: Any) -> Any:
        if self.takes_objects:  # also those that look like numbers
            return encode_objects(X) if is_container(X) else X
        return encode_objects(X) if is_objects(X) else X

    def _dense_workspace_bytes(self, n_rows: int, n_columns: int, n_features: int) -> int:
        width = OBJECT_BYTES if self.takes_objects else n_features
        rest = super()._dense_workspace_bytes(n_rows, n_columns, width)
        if self.cost is None:  # its result, a copy and a mask; what it needs itself is unknown
            return 2 * 8 * n_rows * n_columns + rest
        own = self.cost.entry_bytes * n_rows * n_columns + self.cost.row_bytes * (n_rows + n_columns)
        return math.ceil(own) + rest

    def values(self, X: Block, Y: Block) -> FloatArray:
        """Checked result of the function for all pairs of encoded rows, as it returns them.

        Parameters
        ----------
        X : ndarray or CSR, shape (n_rows, n_features)
            Rows.
        Y : ndarray or CSR, shape (n_columns, n_features)
            Rows that belong to the columns of the block.

        Returns
        -------
        ndarray, shape (n_rows, n_columns)
            Kernel values.

        Raises
        ------
        DkrrError
            If it fails, or returns something else than a matrix of finite numbers.
        """
        return self._block(as_rows(X), as_rows(Y))

    def to_dict(self) -> dict[str, Any]:
        """Description that names the function but cannot bring it back."""
        description = {"kernel": self.tag, "name": self.name, "digest": self.digest()}
        return {**description, "takes_objects": True} if self.takes_objects else description

    def _block_writer(self, X: Block, Y: Block, dtype: np.dtype[Any]) -> Fill:  # noqa: ARG002
        # The function is called once, on the whole block: it may have a high cost per call, and only the
        # whole shows whether it is symmetric.
        block = self._block(X, Y)
        if Y is X:
            check_symmetric(block, self._subject)
            self._check_alone(X, block)

        def fill(rows: slice, columns: slice, out: FloatArray) -> None:
            out[...] = block[rows, columns]

        return fill

    def _diagonal(self, X: Block) -> npt.NDArray[np.float64]:
        values = np.empty(X.shape[0])
        for start in range(0, len(values), DIAGONAL_ROWS):
            rows = X[start : start + DIAGONAL_ROWS]
            values[start : start + DIAGONAL_ROWS] = self._block(rows, rows).diagonal()
        return values

    def _check_alone(self, X: Block, block: FloatArray) -> None:
        """Refuse k(x, z) that depends on the other rows of its block: other blocks would have another kernel.

        A few of the first rows, and of the last ones, are a separate block: what depends on one row of all, the
        first or the largest, is another in one of the two.
        """
        n = len(block)
        m = min(ALONE_ROWS, n // 2)
        for rows in (slice(0, m), slice(n - m, n)) if m > 1 else ():
            alone = self._block(X[rows], X[rows])
            refuse_dependence(alone, block[rows, rows], rows.start, f"{self._subject}: entry k(x, z)")

    @property
    def _subject(self) -> str:
        return f"the kernel function {self.name!r}"

    def _block(self, X: Block, Y: Block) -> FloatArray:
        """Checked result of function(X, Y)."""
        expected = X.shape[0], Y.shape[0]
        takes_objects = self.takes_objects or X.shape[1] == OBJECT_WIDTH
        # A function of float32 rows would compute in float32.
        given = decode_objects if takes_objects else _as_given
        left: Any = given(X)
        right: Any = left if Y is X else given(Y)
        try:
            result = self.function(left, right)
        except (DkrrError, MemoryError):
            raise
        except Exception as error:
            raise KernelFunctionError(
                f"{self._subject} failed on a block of {expected[0]} × {expected[1]} rows (it is given two "
                f"blocks, X and Y, not two single rows as in scikit-learn): {why_it_failed(error)}"
            ) from error
        if shape_of(result, self._subject) != expected:
            raise InputError(
                f"{self._subject} returned shape {np.shape(result)} for blocks of {expected[0]} and "
                f"{expected[1]} rows; expected {expected}. A kernel function of dkrr takes two blocks (X, Y) "
                "and returns all pairs at once, whereas scikit-learn's takes two single rows and returns a "
                "number: wrap such a function f as "
                "lambda X, Y: np.array([[f(x, z) for z in Y] for x in X])"
            )
        block = as_floats(result, self._subject)
        bad = sum(int(np.count_nonzero(~np.isfinite(block[r, c]))) for r, c in strips(*expected))
        if bad:
            raise InputError(
                f"{self._subject} returned {bad} NaN or infinite entries of {block.size}; expected finite "
                "numbers: look for divisions by zero and overflow, and for NaN in X"
            )
        return block


@dataclass(frozen=True)
class Precomputed(Kernel):
    """X is itself a block of the Gram matrix, as with scikit-learn's ``kernel="precomputed"``.

    Called on the Gram matrix alone it checks that this is square and symmetric; with Y, the training rows,
    it checks that X has a column for each of them, and ignores the values of Y.

    See Also
    --------
    dkrr.gram : The Gram matrix as a lazy array.
    dkrr.kernels.CallableKernel : A function of two blocks of rows.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr.kernels import Precomputed
    >>> Precomputed()(np.array([[2.0, 1.0], [1.0, 2.0]]))
    array([[2., 1.],
           [1., 2.]])
    """

    tag: ClassVar[str] = "precomputed"
    names: ClassVar[tuple[str, ...]] = (tag,)
    is_precomputed: ClassVar[bool] = True
    entry_seconds: ClassVar[float] = 0.0
    column_seconds: ClassVar[float] = 0.0
    _takes_csr: ClassVar[bool] = True
    _follows_entries: ClassVar[bool] = False

    def __call__(self, X: Block, Y: Block | None = None, *, out: FloatArray | None = None) -> FloatArray:
        block = as_rows(X)
        if Y is None:
            _check_square(block)
        elif block.shape[1] != np.shape(Y)[0]:
            raise InputError(
                f"the precomputed block X has {plural(block.shape[1], 'column')}; expected {np.shape(Y)[0]}, one for "
                "each training row"
            )
        target = as_buffer(out, block.shape)
        target[...] = block.toarray() if is_sparse(block) else block
        if Y is None:
            check_symmetric(target, "the precomputed Gram matrix")
            mirror_lower(target)
        return target

    def _block_writer(self, X: Block, Y: Block, dtype: np.dtype[Any]) -> Fill:  # noqa: ARG002
        raise AssertionError("a precomputed kernel is never part of another")

    def _diagonal(self, X: Block) -> npt.NDArray[np.float64]:
        _check_square(X)
        return cast("npt.NDArray[np.float64]", X.diagonal().astype(np.float64))


def _check_square(K: Block) -> None:
    if K.shape[0] != K.shape[1]:
        raise InputError(
            f"the precomputed Gram matrix has shape {K.shape}; expected a square one, a row and a column for "
            "each sample"
        )


_WRITES = "; it writes into the rows that it is given, which would change X: have it work on a copy (X.copy())"


def why_it_failed(error: Exception) -> str:
    """Ending of a message about a user's function that raised an error."""
    ending = _WRITES if isinstance(error, ValueError) and "read-only" in str(error) else ""
    return f"{type(error).__qualname__}: {error}{ending}"


def shape_of(result: Any, subject: str) -> tuple[int, ...]:
    """Shape of what a user's function returned."""
    try:
        return tuple(np.shape(result))
    except ValueError:
        raise InputError(f"{subject} returned lists of different lengths; expected an array") from None


def as_floats(result: Any, subject: str) -> FloatArray:
    """Convert the result of a user's function to a dense array of floats; flags count as 0 and 1."""
    if sp.issparse(result):
        raise InputTypeError(f"{subject} returned a sparse matrix; expected a dense array: toarray()")
    refuse_masked(result, f"the result of {subject}")
    array = np.asarray(result)
    if array.dtype.kind not in "fiub":
        raise InputTypeError(f"{subject} returned dtype {array.dtype}; expected real numbers, float64 at best")
    if array.dtype.kind == "f":
        return array
    check_exact(array, f"the result of {subject}")
    return array.astype(np.float64)  # differences of flags are none, and those of unsigned numbers others


def refuse_dependence(alone: FloatArray, block: FloatArray, first: int, what: str) -> None:
    """Refuse results of some rows alone that are others than in a larger block, where the first has number `first`.

    Functions of rows have to give the same whatever the other rows are: dkrr cuts X into blocks of many sizes.
    """
    difference = np.abs(alone - block)
    at = np.unravel_index(int(np.argmax(difference)), difference.shape)
    if difference[at] <= ALONE_TOLERANCE * float(np.abs(block).max()):
        return
    raise InputError(
        f"{what} depended on the other rows of the block: for row {first + int(at[0])} it was {block[at]:.6g}, and "
        f"{alone[at]:.6g} in a block of {plural(len(block), 'row')}; expected the same in every block: compute what "
        "all rows determine (a median, a maximum, a mean) beforehand, and give it as a parameter"
    )


def identity_of(*values: Any) -> str:
    """SHA-256 of functions and the values that they use, the same in every process."""
    return hashlib.sha256(" ".join(map(_text, values)).encode()).hexdigest()


def identity_of_class(kind: type) -> str:
    """SHA-256 of the methods and constants that a class, or a parent that is not dkrr's own, defines."""
    members: dict[str, Any] = {}
    for one in kind.__mro__:
        for name, member in vars(one).items():
            is_defined = name not in getattr(kind, "__dataclass_fields__", {}) and not name.startswith("__")
            if is_defined and not is_builtin(one):
                members.setdefault(name, getattr(member, "__func__", getattr(member, "fget", member)))
    return identity_of(*(part for name in sorted(members) for part in (name, members[name])))


def is_builtin(kind: type) -> bool:
    """Whether a class is dkrr's own, so that its name identifies it."""
    return kind.__module__.startswith("dkrr.")


def checked_name(name: Any, function: Callable[..., Any]) -> str:
    """Name under which a description has a function; None: its own."""
    if name is None:
        return qualified_name(function)
    if not isinstance(name, str) or not name.isprintable() or not name:
        raise InputTypeError(f"name is {shown(name)}; expected printable text, or None: the function's own name")
    return name


def qualified_name(function: Callable[..., Any]) -> str:
    """Module and name of a function, a class, or the class of a callable value."""
    if isinstance(function, functools.partial):
        return qualified_name(function.func)
    named: Any = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def _text(value: Any, depth: int = 4) -> str:
    """Text that identifies a function (or a value it uses) in every process, as addresses do not.

    Source text alone would not do: closures of one factory share it. So what a function has bound belongs to it: cells,
    defaults, and the plain values that it reads from its module.
    """
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()}"
    if depth == 0 or isinstance(value, type | ModuleType):
        return getattr(value, "__qualname__", getattr(value, "__name__", type(value).__qualname__))
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_text(value[key], depth - 1)}" for key in sorted(value, key=repr)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_text(item, depth - 1) for item in value) + "]"
    if isinstance(value, functools.partial):
        return _text([value.func, value.args, value.keywords], depth)
    code = getattr(value, "__code__", None)
    if code is not None:
        names = {name: value.__globals__[name] for name in code.co_names if name in value.__globals__}
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        return f"{_source(value)} {_text([cells, value.__defaults__, value.__kwdefaults__, names], depth - 1)}"
    if callable(value) and hasattr(value, "__dict__"):
        return f"{_source(type(value))} {_text(vars(value), depth - 1)}"
    text = repr(value)
    return type(value).__qualname__ if " at 0x" in text else text


def _source(thing: Any) -> str:
    try:
        return inspect.getsource(thing)
    except (OSError, TypeError, SyntaxError, tokenize.TokenError):  # of an interpreter, or exec with another file
        code = getattr(thing, "__code__", None)
        return qualified_name(thing) + ("" if code is None else code.co_code.hex() + _text(code.co_consts, 1))
