"""All ways to fit, by the loss: a new one is a new file and a name here."""

from collections.abc import Mapping

from dkrr.planning.direct import Direct
from dkrr.planning.float32_factor import Float32Factor
from dkrr.planning.iteration import Iterative
from dkrr.planning.newton import Newton
from dkrr.planning.problem import Loss
from dkrr.planning.strategy import Strategy

STRATEGIES: Mapping[Loss, tuple[type[Strategy], ...]] = {
    "squared": (Direct, Float32Factor, Iterative),
    "logistic": (Newton,),
}
