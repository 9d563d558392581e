"""What a fitted regression says of its own errors: standard deviations, the likelihood, leave-one-out residuals.

Kernel ridge regression is the mean of a Gaussian process with covariance s² k and noise of variance s² λ / wᵢ. All of
this follows from the Cholesky factor of K + λW⁻¹ (in primal form of ΦᵀWΦ + λI), which is made once, when it is first
asked for, and kept. Where a factor is not affordable, or conjugate gradient was requested, variances come with
certified bounds and the likelihood with a standard error.
"""

from dkrr.posterior.base import Kept
from dkrr.posterior.intervals import CrossValidationIntervals, Learned
from dkrr.posterior.processes import Processes, Variances

__all__ = ["CrossValidationIntervals", "Kept", "Learned", "Processes", "Variances"]
