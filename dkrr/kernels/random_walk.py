"""The random-walk kernel of graphs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dkrr.checks import flag, positive, shown, whole
from dkrr.errors import InputTypeError
from dkrr.kernels.base import FIXED_WORKSPACE_BYTES, EntryCost, Kernel
from dkrr.kernels.blocks import STRIP_ENTRIES, Block, Fill, FloatArray, Scratch
from dkrr.kernels.graph_products import PRODUCT_ENTRIES
from dkrr.kernels.graph_walks import MATCHED_PAIRS, common_walks
from dkrr.kernels.graphs import encode_graphs

# One pair of labelled molecules of 18 atoms, at half of the largest decay: sizes of graphs are not known here.
PAIR_SECONDS = 10e-6

# At the peak, for a node or an edge of a product, for a pair, and for a graph of about 30 nodes and edges.
ENTRY_BYTES = 100
PAIR_BYTES = 512
GRAPH_BYTES = 16 * 1024


@dataclass(frozen=True)
class RandomWalk(Kernel):
    """Random-walk kernel of graphs: the walks that two of them have in common, each with λ to the power of its length.

    A walk of length l in common is a walk v₀ ... v_l in G and one w₀ ... w_l in H, both along edges, where v_i and w_i
    have the same label for every i. With c_l(G, H) their number,

        k(G, H) = Σ_l λˡ c_l(G, H) = 1ᵀ (I − λ W)⁻¹ 1,

    where W is the adjacency matrix of the direct product graph, whose nodes are the pairs of equally labelled nodes:
    the geometric kernel with starting and stopping weights p = q = 1 on these pairs, without the division by their
    number. Sums run from l = 0, so equally labelled pairs of nodes count 1 each. Without labels all nodes match.

    Data are lists of graphs: networkx graphs, pairs (adjacency, labels), triples (n_nodes, edges, labels) or
    `dkrr.kernels.Graph`, undirected, without weights, loops and parallel edges; all with whole numbers as labels, all
    with strings, or all without.

    Parameters
    ----------
    decay : float
        λ > 0. The infinite sum is finite for all pairs of some graphs if and only if it is finite for each graph with
        itself, since c_l(G, H)² ≤ c_l(G, G) c_l(H, H): λ must be below 1 / ρ for the largest spectral radius ρ of a
        graph's labelled product with itself. This is checked, exactly and not by a bound such as the product of the
        largest degrees, for every graph of X and of Y; the error names a λ that is small enough. Very near the limit
        rounding would be multiplied by 1 / (1 - λρ): the same error is raised unless a proven bound of λρ, which the
        solution gives, is at most 1 - 1e-6.
    steps : int, optional
        Length of the longest walks that are counted, at least 1; None means all. If given, λ may have any value
        whose sums are within the range of float64.
    normalized : bool
        Divide by √(k(G, G) k(H, H)), so that k(G, G) = 1.
    label : str or None
        Attribute of networkx nodes that is their label; None means no labels. Other forms of graphs contain their
        labels.

    References
    ----------
    Vishwanathan, Schraudolph, Kondor, Borgwardt (2010), Graph kernels, Journal of Machine Learning Research 11:
    the kernel (section 3), conjugate gradients and spectral decomposition for it (section 4).
    Gärtner, Flach, Wrobel (2003), On graph kernels: hardness results and efficient alternatives, COLT.
    Strakoš, Tichý (2002), On error estimation in the conjugate gradient method, ETNA 13: the sum bᵀA⁻¹b and its error
    from the step lengths.

    Examples
    --------
    >>> from dkrr.kernels import RandomWalk
    >>> water, hydroxyl = (3, [(0, 1), (0, 2)], ["O", "H", "H"]), (2, [(0, 1)], ["O", "H"])
    >>> RandomWalk(decay=0.1, steps=1, normalized=False)([water], [hydroxyl])
    array([[3.4]])
    """

    tag: ClassVar[str] = "random_walk"
    # Sums in float64 for a float32 block; a sum over steps and its terms.
    _strip_buffers: ClassVar[int] = 3

    decay: float
    steps: int | None = None
    normalized: bool = True
    label: str | None = "label"

    def __post_init__(self) -> None:
        object.__setattr__(self, "decay", positive(self.decay, "decay"))
        if self.steps is not None:
            object.__setattr__(self, "steps", whole(self.steps, "steps", 1, "None counts walks of any length"))
        object.__setattr__(self, "normalized", flag(self.normalized, "normalized"))
        if self.label is not None and not isinstance(self.label, str):
            raise InputTypeError(f"label is {shown(self.label)}; expected the name of an attribute of nodes, or None")

    def encode(self, X: Any) -> Any:
        if sp.issparse(X) and X.format == "csr":
            return X
        # A Series, but nothing lazy, which would be computed by accident.
        given = X.to_numpy() if hasattr(X, "to_numpy") and not hasattr(X, "compute") else X
        if isinstance(given, np.ndarray) and given.dtype == object and given.ndim == 1:
            given = given.tolist()
        if isinstance(given, list | tuple):
            return encode_graphs(given, self.label)
        shape = f" of dtype {X.dtype} and shape {X.shape}" if isinstance(X, np.ndarray) else ""
        raise InputTypeError(
            f"X is of type {type(X).__module__}.{type(X).__qualname__}{shape}; expected a list, a tuple or a "
            "one-dimensional object array of graphs, or the CSR rows that encode made of them"
        )

    @property
    def has_unit_diagonal(self) -> bool:
        return self.normalized

    def entry_cost(self, n_features: int) -> EntryCost:  # noqa: ARG002
        return EntryCost(0.0, PAIR_SECONDS)

    def _dense_workspace_bytes(self, n_rows: int, n_columns: int, n_features: int) -> int:  # noqa: ARG002
        """Temporary memory of one call, for graphs of up to 30 nodes and edges and products of some 10⁴.

        The number of columns does not matter here. Graphs many times larger take more in proportion, and a single pair
        takes what its product needs.
        """
        pieces = ENTRY_BYTES * PRODUCT_ENTRIES + PAIR_BYTES * MATCHED_PAIRS + self._strip_buffers * 8 * STRIP_ENTRIES
        return GRAPH_BYTES * (n_rows + n_columns) + pieces + FIXED_WORKSPACE_BYTES

    def _filler(self, X: Block, Y: Block, dtype: np.dtype[Any]) -> Fill:  # noqa: ARG002
        walks = common_walks(X, Y, self.decay, self.steps)
        scale, scale_right = 1 / np.sqrt(walks.own_left), 1 / np.sqrt(walks.own_right)
        scratch = Scratch()

        def fill(rows: slice, columns: slice, out: FloatArray) -> None:
            # Sums may be too large for float32 until they are divided.
            strip = out if out.dtype == np.float64 else scratch.like(out)
            walks.fill(rows, columns, strip)
            if self.normalized:
                strip *= scale[rows, np.newaxis]
                strip *= scale_right[columns]
            if strip is not out:
                out[...] = strip

        return fill

    def _diagonal(self, X: Block) -> npt.NDArray[np.float64]:
        if self.normalized or X.shape[0] == 0:
            return np.ones(X.shape[0])
        return common_walks(X, X, self.decay, self.steps).own_left
