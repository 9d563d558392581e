"""Kernels on a GPU: blocks k(X, Z) in the operations of an array namespace, NumPy's or CuPy's.

A form of a kernel is written once, in functions of the array API standard, and every namespace that has these runs it:
CuPy on a GPU, and in tests NumPy and `array_api_strict`. What depends on the rows alone is prepared on the host in
float64, and rounded then: rows less an origin near their mean, divided by their lengths, and their squared norms. A
block is one product of matrices and one elementwise function, which CuPy compiles to a single pass (`cupy.fuse`).

Distances from a product of matrices lose digits where they are small beside the norms. Entries that matter are computed
again from differences of the rows, as on the CPU (`kernels.euclidean`).

References
----------
The Python array API standard, data-apis.org/array-api. R. Okuta, Y. Unno, D. Nishino, S. Hido, C. Loomis, "CuPy: a
NumPy-compatible library for NVIDIA GPU calculations", LearningSys 2017.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from dkrr.errors import InputError
from dkrr.kernels.base import Kernel
from dkrr.kernels.blocks import FloatArray, squared_norms
from dkrr.kernels.centring import CentredLinear
from dkrr.kernels.columns import Columns, leaves
from dkrr.kernels.composite import Product, Scaled, Sum
from dkrr.kernels.dot import Cosine, Linear, Polynomial, Sigmoid, unit_rows
from dkrr.kernels.euclidean import MAX_SIZE, RBF, REFINE_DISTANCE, REFINE_EXPONENT, Matern

Array = npt.NDArray[np.float64]
DeviceArray = Any
"""Array of a device's namespace."""

PAIRS_AT_ONCE = 2**20
"""Numbers of the differences of rows that are computed at once."""


class Device:
    """Arrays of one namespace, and what crosses its border: this process's memory, with NumPy or another namespace.

    Parameters
    ----------
    xp : module
        Namespace of the array API standard.
    """

    out_of_memory: type[BaseException] = MemoryError
    """Error of an array that does not fit."""

    def __init__(self, xp: Any) -> None:
        self.xp = xp

    def array(self, values: npt.NDArray[Any]) -> DeviceArray:
        """Array of the device with the values and the type of one of the host."""
        return self.xp.asarray(np.ascontiguousarray(values))

    def host(self, array: DeviceArray) -> npt.NDArray[Any]:
        """Values in memory of the host."""
        return np.asarray(array)

    def zeros(self, shape: tuple[int, ...]) -> DeviceArray:
        """Zeros in float64."""
        return self.xp.zeros(shape, dtype=self.xp.float64)

    def cast(self, array: DeviceArray, dtype: str) -> DeviceArray:
        """Array of the type "float32" or "float64"."""
        return self.xp.astype(array, getattr(self.xp, dtype), copy=False)

    def fused(self, function: Callable[..., DeviceArray]) -> Callable[..., DeviceArray]:
        """Elementwise function of arrays that is one pass over them, where the namespace can compile it."""
        return function

    def memory(self) -> tuple[int, int]:
        """Bytes that are free for this process, and those of the device in all."""
        raise NotImplementedError

    def synchronize(self) -> None:
        """Wait until all that was asked of the device is done."""

    def release(self) -> None:
        """Give back memory that is kept for later arrays."""


class CudaDevice(Device):
    """The current CUDA device of this process, by CuPy, which is imported here."""

    def __init__(self) -> None:
        import cupy

        super().__init__(cupy)
        self.name: str = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()
        self.out_of_memory = cupy.cuda.memory.OutOfMemoryError  # not of memory of the host

    def host(self, array: DeviceArray) -> npt.NDArray[Any]:
        found: npt.NDArray[Any] = self.xp.asnumpy(array)
        return found

    def fused(self, function: Callable[..., DeviceArray]) -> Callable[..., DeviceArray]:
        compiled: Callable[..., DeviceArray] = self.xp.fuse(function)
        return compiled

    def memory(self) -> tuple[int, int]:
        free, total = self.xp.cuda.runtime.memGetInfo()
        return free + self.xp.get_default_memory_pool().free_bytes(), total

    def synchronize(self) -> None:
        self.xp.cuda.get_current_stream().synchronize()

    def release(self) -> None:
        self.xp.get_default_memory_pool().free_all_blocks()
        self.xp.get_default_pinned_memory_pool().free_all_blocks()


@dataclass(frozen=True)
class Prepared:
    """What a form needs of some rows, on the device."""

    arrays: tuple[DeviceArray, ...]
    """Each with a row for every row."""
    sizes: tuple[float, ...]
    """For each of them, the largest squared norm of rows of which distances are computed; 0 without distances."""

    @property
    def n(self) -> int:
        """Rows."""
        return int(self.arrays[0].shape[0])

    def __getitem__(self, rows: slice) -> "Prepared":
        return Prepared(tuple(a[rows, ...] for a in self.arrays), self.sizes)

    @property
    def n_bytes(self) -> int:
        """Memory of them."""
        return sum(a.shape[0] * a.shape[1] * (4 if "float32" in str(a.dtype) else 8) for a in self.arrays)

    def of(self, arrays: slice) -> "Prepared":
        """Some of the arrays."""
        return Prepared(self.arrays[arrays], self.sizes[arrays])


class DeviceForm(ABC):
    """A kernel in the operations of an array namespace."""

    n_arrays: int = 1
    """Arrays of `prepared`."""

    def __init__(self, kernel: Any, device: Device) -> None:
        self.kernel, self.device = kernel, device

    @classmethod
    def refusal(cls, kernel: Any) -> str:  # noqa: ARG003
        """Why a kernel of this class has no form; empty where it has one."""
        return ""

    @abstractmethod
    def prepared(self, X: FloatArray, origin: Array, dtype: str) -> list[tuple[FloatArray, float]]:
        """Arrays of dense rows in a type, on the host, each with the largest squared norm (see `Prepared`).

        Parameters
        ----------
        X : ndarray of shape (n, d)
        origin : ndarray of shape (d,)
            Point near the rows, about which distances are computed: the same for all rows of a fit.
        dtype : {"float64", "float32"}
        """

    @abstractmethod
    def block(self, left: Prepared, right: Prepared, dtype: str, *, same: bool) -> DeviceArray:
        """k(X, Z) of shape (n, m), from the arrays of this form; `same` where both are the same rows."""


class DeviceKernel:
    """A resolved kernel on a device.

    Parameters
    ----------
    kernel : Kernel
    device : Device
    origin : ndarray of shape (d,)
        Point near the rows, such as their mean.

    Raises
    ------
    InputError
        If the kernel has no form on a device (`refusal`).
    """

    def __init__(self, kernel: Kernel, device: Device, origin: Array) -> None:
        if reason := refusal(kernel):
            raise InputError(f"kernel is {kernel!r}, and {reason}; expected device='cpu'")
        self.kernel, self.device, self.origin = kernel, device, origin
        self.form = form_of(kernel, device)

    def rows(self, X: FloatArray, dtype: str) -> Prepared:
        """Dense rows on the device, as blocks in a type need them.

        Raises
        ------
        InputError
            If squared norms leave the range of float64.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            found = self.form.prepared(X, self.origin, dtype)
        largest = max(size for _, size in found)
        # What overflows in float32 is found in the products, and computed again in float64.
        if dtype == "float64" and not largest <= MAX_SIZE[np.dtype(dtype)]:
            raise InputError(
                f"a scaled squared distance of rows is {largest:.3g}, which leaves the range of float64 on a GPU; "
                f"expected rows nearer to each other, a smaller gamma or a larger length_scale, or device='cpu'"
            )
        return Prepared(tuple(self.device.array(array) for array, _ in found), tuple(size for _, size in found))

    def block(self, left: Prepared, right: Prepared, dtype: str, *, same: bool = False) -> DeviceArray:
        """k(X, Z) of prepared rows, of shape (n, m), in their type; `same` where both are the same rows."""
        return self.form.block(left, right, dtype, same=same)


class _Leaf(DeviceForm):
    """A kernel of one product of matrices, whose elementwise function is compiled once."""

    def __init__(self, kernel: Any, device: Device) -> None:
        super().__init__(kernel, device)
        self._function = device.fused(self._apply)

    @abstractmethod
    def _apply(self, *arrays: DeviceArray) -> DeviceArray:
        """Elementwise function of the product, and of what the rows have besides."""


class _Dots(_Leaf):
    """f(xᵀz) of rows that may be transformed first."""

    def prepared(self, X: FloatArray, origin: Array, dtype: str) -> list[tuple[FloatArray, float]]:  # noqa: ARG002
        return [(np.ascontiguousarray(self._rows(X), dtype), 0.0)]

    def _rows(self, X: FloatArray) -> FloatArray:
        return X

    def block(self, left: Prepared, right: Prepared, dtype: str, *, same: bool) -> DeviceArray:  # noqa: ARG002
        dots = self.device.xp.matmul(left.arrays[0], right.arrays[0].T)
        return dots if type(self)._apply is _Dots._apply else self._function(dots)

    def _apply(self, *arrays: DeviceArray) -> DeviceArray:
        return arrays[0]


class _Cosines(_Dots):
    def _rows(self, X: FloatArray) -> FloatArray:
        return np.asarray(unit_rows(X))


class _CentredDots(_Dots):
    def _rows(self, X: FloatArray) -> FloatArray:
        return np.asarray(np.subtract(X, self.kernel.origin, dtype=np.float64))


class _Powers(_Dots):
    @classmethod
    def refusal(cls, kernel: Any) -> str:
        return "" if isinstance(kernel.degree, int) else "powers on a GPU have a whole degree"

    def _apply(self, *arrays: DeviceArray) -> DeviceArray:
        base = arrays[0] * float(self.kernel.gamma) + float(self.kernel.coef0)
        if self.kernel.degree == 0:
            return base * 0.0 + 1.0
        found = base
        for bit in bin(self.kernel.degree)[3:]:  # by squaring
            found = found * found
            if bit == "1":
                found = found * base
        return found


class _Tangents(_Dots):
    def _apply(self, *arrays: DeviceArray) -> DeviceArray:
        return self.device.xp.tanh(arrays[0] * float(self.kernel.gamma) + float(self.kernel.coef0))


class _Distances(_Leaf):
    """f(‖x − z‖²) of scaled rows.

    Rows are scaled, so that the function has no parameter. `n` and `m` are squared norms, `g` the product of matrices.
    """

    n_arrays = 3
    given_from: float
    """Squared norm from which differences are those of rows as given: less an origin they would have lost digits."""

    def __init__(self, kernel: Any, device: Device) -> None:
        super().__init__(kernel, device)
        self._of_squares, self._squares = device.fused(self._decay), device.fused(self._squared)
        self._is_near = device.fused(_is_near)

    @abstractmethod
    def _scales(self) -> Array:
        """Numbers that columns are multiplied by, of shape () or (d,)."""

    @abstractmethod
    def _decay(self, squares: DeviceArray) -> DeviceArray:
        """The kernel of ‖x − z‖² ≥ 0."""

    @abstractmethod
    def _refined(self, largest: float, d: int, dtype: str) -> "Refined | None":
        """Entries that are computed again where squared norms add up to `largest` at most; None: none is."""

    def prepared(self, X: FloatArray, origin: Array, dtype: str) -> list[tuple[FloatArray, float]]:
        centred = np.subtract(X, origin, dtype=np.float64)
        centred *= self._scales()
        rows = centred.astype(dtype, copy=False)
        norms = squared_norms(rows)  # of the rounded rows, so that equal ones have the distance 0
        largest = float(norms.max(initial=0.0))
        width = X.shape[1] if dtype == "float64" and largest > self.given_from else 0
        given = np.asarray(X[:, :width], dtype)
        return [(rows, largest), (norms.astype(dtype)[:, None], largest), (given, 0.0)]

    def _squared(self, g: DeviceArray, n: DeviceArray, m: DeviceArray) -> DeviceArray:
        return self.device.xp.maximum(n + m - (g + g), 0.0)

    def _apply(self, *arrays: DeviceArray) -> DeviceArray:
        return self._decay(self._squared(*arrays))

    def block(self, left: Prepared, right: Prepared, dtype: str, *, same: bool) -> DeviceArray:
        xp, (x, n, x_given), (z, m, z_given) = self.device.xp, left.arrays, right.arrays
        g = xp.matmul(x, z.T)
        refined = self._refined(left.sizes[0] + right.sizes[0], int(x.shape[1]), dtype)
        if refined is None and not same:
            return self._function(g, n, m.T)
        squares = self._squares(g, n, m.T)
        del g
        if refined is not None:
            mask = self._is_near(squares, n, m.T, refined.intercept, refined.slope, refined.limit)
            if x_given.shape[1] and z_given.shape[1]:
                self._refine(squares, mask, x_given, z_given, self.device.array(np.asarray(self._scales(), dtype)))
            else:  # rows that are so far from each other have no such entry
                self._refine(squares, mask, x, z)
        if same:
            number = xp.arange(left.n)
            squares = xp.where(number[:, None] == number[None, :], xp.zeros_like(squares), squares)
        return self._of_squares(squares)

    def _refine(
        self, squares: DeviceArray, mask: DeviceArray, x: DeviceArray, z: DeviceArray, scales: DeviceArray = None
    ) -> None:
        """Compute the entries of a mask again, from differences of rows, which are scaled then or were before."""
        xp = self.device.xp
        i, j = xp.nonzero(mask)
        count = int(i.shape[0])
        if count == 0:
            return
        height, parts = max(1, PAIRS_AT_ONCE // int(x.shape[1])), []
        for start in range(0, count, height):
            part = slice(start, min(start + height, count))
            difference = xp.take(x, i[part], axis=0) - xp.take(z, j[part], axis=0)
            difference = difference if scales is None else difference * scales
            parts.append(xp.sum(difference * difference, axis=1))
        squares[mask] = xp.concat(parts) if len(parts) > 1 else parts[0]


@dataclass(frozen=True)
class Refined:
    """Squared distances below intercept + slope · (‖x‖² + ‖z‖²), where these norms add up to more than a limit."""

    intercept: float
    slope: float
    limit: float


def _is_near(
    squares: DeviceArray, n: DeviceArray, m: DeviceArray, intercept: float, slope: float, limit: float
) -> DeviceArray:
    return (squares < (n + m) * slope + intercept) & ((n + m) > limit)


VANISHING_EXPONENT = 50.0
"""Exponents below minus this make entries that are 0 to the accuracy of float64."""


class _Gaussians(_Distances):
    given_from = REFINE_EXPONENT[np.dtype(np.float64)] / 4

    def _scales(self) -> Array:
        return np.asarray(np.sqrt(self.kernel.gamma))

    def _decay(self, squares: DeviceArray) -> DeviceArray:
        return self.device.xp.exp(-squares)

    def _refined(self, largest: float, d: int, dtype: str) -> Refined | None:
        limit = REFINE_EXPONENT[np.dtype(dtype)]
        if not largest > limit:
            return None
        return Refined(VANISHING_EXPONENT, 4.0 * (d + 2) * float(np.finfo(dtype).eps), limit)


class _Materns(_Distances):
    given_from = 1e5

    def _scales(self) -> Array:
        return np.asarray(sqrt(2.0 * self.kernel.nu) / np.asarray(self.kernel.length_scale))

    def _decay(self, squares: DeviceArray) -> DeviceArray:
        xp, nu = self.device.xp, self.kernel.nu
        r = xp.sqrt(squares)
        if nu == 0.5:
            return xp.exp(-r)
        if nu == 1.5:
            return (r + 1.0) * xp.exp(-r)
        return (squares * (1.0 / 3.0) + r + 1.0) * xp.exp(-r)

    def _refined(self, largest: float, d: int, dtype: str) -> Refined | None:  # noqa: ARG002
        return Refined(0.0, REFINE_DISTANCE[np.dtype(dtype)], 0.0)


class _Compound(DeviceForm):
    """A kernel made of others, each with its own arrays."""

    def __init__(self, kernel: Any, device: Device) -> None:
        super().__init__(kernel, device)
        self.parts = [form_of(part, device) for part in kernel.parts]
        self.n_arrays = sum(part.n_arrays for part in self.parts)

    @classmethod
    def refusal(cls, kernel: Any) -> str:
        return next(filter(None, map(refusal, kernel.parts)), "")

    def prepared(self, X: FloatArray, origin: Array, dtype: str) -> list[tuple[FloatArray, float]]:
        return [pair for part in self.parts for pair in part.prepared(X, origin, dtype)]

    def block(self, left: Prepared, right: Prepared, dtype: str, *, same: bool) -> DeviceArray:
        blocks, first = [], 0
        for part in self.parts:
            own = slice(first, first := first + part.n_arrays)
            blocks.append(part.block(left.of(own), right.of(own), dtype, same=same))
        return self._combined(blocks)

    @abstractmethod
    def _combined(self, blocks: Sequence[DeviceArray]) -> DeviceArray:
        """Block of the kernel, from those of its parts."""


class _Sums(_Compound):
    def _combined(self, blocks: Sequence[DeviceArray]) -> DeviceArray:
        return blocks[0] + blocks[1]


class _Products(_Compound):
    def _combined(self, blocks: Sequence[DeviceArray]) -> DeviceArray:
        return blocks[0] * blocks[1]


class _Multiples(_Compound):
    def _combined(self, blocks: Sequence[DeviceArray]) -> DeviceArray:
        return blocks[0] * float(self.kernel.scale)


class _OfColumns(_Compound):
    def prepared(self, X: FloatArray, origin: Array, dtype: str) -> list[tuple[FloatArray, float]]:
        return self.parts[0].prepared(self.kernel.cut(X), origin[self.kernel.numbers(len(origin))], dtype)

    def _combined(self, blocks: Sequence[DeviceArray]) -> DeviceArray:
        return blocks[0]


FORMS: dict[type[Kernel], type[DeviceForm]] = {
    Linear: _Dots,
    CentredLinear: _CentredDots,
    Polynomial: _Powers,
    Sigmoid: _Tangents,
    Cosine: _Cosines,
    RBF: _Gaussians,
    Matern: _Materns,
    Sum: _Sums,
    Product: _Products,
    Scaled: _Multiples,
    Columns: _OfColumns,
}
"""Forms of kernels on a device, by their classes."""


def refusal(kernel: Kernel) -> str:
    """Why a kernel has no form on a GPU; empty where it has one."""
    form = FORMS.get(type(kernel))
    if form is None:
        known = ", ".join(one.__name__ for one in FORMS if one is not CentredLinear)
        return f"{type(kernel).__name__} has no form on a GPU, as these kernels have: {known}"
    return form.refusal(kernel)


def n_leaves(kernel: Kernel) -> int:
    """Products of matrices that a block of a kernel takes."""
    return sum(1 for _ in leaves(kernel))


def form_of(kernel: Kernel, device: Device) -> DeviceForm:
    """Form of a resolved kernel that has one."""
    return FORMS[type(kernel)](kernel, device)
