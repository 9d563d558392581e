"""Ways to solve, a module for each: its candidates, its words and its execution."""

from dkrr.fitting.methods.device_cg import DeviceCG
from dkrr.fitting.methods.dual_cg import DualCG
from dkrr.fitting.methods.dual_cholesky import DualCholesky, DualFloat32
from dkrr.fitting.methods.fourier_solve import FourierCG, FourierCholesky
from dkrr.fitting.methods.newton_curvature import NewtonCurvature
from dkrr.fitting.methods.primal_cg import PrimalCG
from dkrr.fitting.methods.primal_cholesky import PrimalCholesky
from dkrr.planning.strategy import Method

METHODS: tuple[Method, ...] = (
    PrimalCholesky(),
    NewtonCurvature(),
    PrimalCG(),
    FourierCholesky(),
    FourierCG(),
    DualCholesky(),
    DualFloat32(),
    DualCG(),
    DeviceCG(),
)
"""All ways to solve, in the order in which their candidates are priced."""
