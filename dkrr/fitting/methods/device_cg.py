"""Conjugate gradient with products on a GPU, whose blocks of K are formed there and never stored."""

from collections.abc import Iterator, Sequence
from typing import ClassVar

from dkrr.fitting.costs.device_costs import DeviceDual, multiplied_on_device
from dkrr.fitting.methods.dual_cg import DualCG
from dkrr.linalg.device_products import DeviceExecutor
from dkrr.machine.gpu import open_gpu
from dkrr.planning.problem import Problem
from dkrr.planning.resources import Resources, Workplace
from dkrr.planning.strategy import Strategy
from dkrr.text import Reason, format_bytes

SLOW_FLOAT64 = 4.0
"""Time of a product in float64 over one in float32 from which a plan says that it is slow."""


class DeviceCG(DualCG):
    """Products with K, and with the preconditioner's factor, on the GPU of the calling process."""

    name = "dual, conjugate gradient on a GPU"
    device = "cuda"
    costs: ClassVar = DeviceDual

    def recipes(self, p: Problem, r: Resources) -> Iterator[Strategy]:
        return multiplied_on_device(p, r, self)

    def uses_threads(self, place: Workplace) -> bool:  # noqa: ARG002
        return False

    def executor(self, c: Strategy) -> DeviceExecutor:
        products = c.details.products
        return DeviceExecutor(open_gpu().device, products.tile, products.rows_bytes)

    def products_words(self, c: Strategy) -> str:
        products = c.details.products
        precision = "mixed precision" if products.precision == "float32" else "float64"
        return f"{precision}, blocks of {products.tile:,} formed on the GPU at every pass"

    def summary(self, c: Strategy) -> str:
        return f"{c.form}, conjugate gradient, {self.products_words(c)}"

    def more_facts(self, c: Strategy, p: Problem) -> list[tuple[str, str]]:
        products = c.details.products
        gpu = f"{products.gpu}, {format_bytes(products.device_bytes)} of its memory"
        return [*super().more_facts(c, p), ("GPU", gpu)]

    def why(self, c: Strategy, p: Problem, candidates: Sequence[Strategy]) -> list[Reason]:
        """Also why on the GPU."""
        products = c.details.products
        found = [one for one in super().why(c, p, candidates) if one.code not in OF_CPU]
        if p.device == "auto":
            found.append(Reason("gpu-is-faster", "on the GPU, at the rates that were measured when it was opened"))
        if products.precision == "float32":
            slower = f"{products.float64_slowdown:.2g} × the time"
            text = f"products in float64 would take {slower}; the true residual is computed so"
            found.append(Reason("float32-products", text))
        elif products.float64_slowdown >= SLOW_FLOAT64:
            text = f"this GPU takes {products.float64_slowdown:.2g} × the time for products in float64"
            found.append(Reason("float64-is-slow", text))
        return found


OF_CPU = ("tiles-formed-again", "threads-are-as-fast", "float32-products")
"""Codes of reasons in the words of the CPU."""
