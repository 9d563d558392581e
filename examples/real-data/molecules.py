"""
Energies of molecules
=====================

From the positions of atoms to an energy, and how the error falls with the number of
molecules.

600 molecules of QM9 (Ramakrishnan et al. 2014), of which the package ``qm9pack`` has a
copy. A molecule is described by the sorted eigenvalues of its Coulomb matrix (Rupp et al.
2012), which do not depend on the order of its atoms, nor on where it is.
"""

# %%
# The Coulomb matrix has ZᵢZⱼ / ‖rᵢ − rⱼ‖ beside its diagonal, and ½ Zᵢ^2.4 on it.

import ast
from importlib.util import find_spec
from pathlib import Path
from textwrap import fill

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from dkrr import KernelRidgeCV

CHARGES = {"H": 1, "C": 6, "N": 7, "O": 8, "F": 9}
ENERGIES = {
    "H": -0.500273,
    "C": -37.846772,
    "N": -54.583861,
    "O": -75.064579,
    "F": -99.718730,
}


def eigenvalues(elements, positions, size=29):
    """Sorted eigenvalues of the Coulomb matrix, padded with zeros."""
    charges = np.array([CHARGES[element] for element in elements])
    distances = np.linalg.norm(positions[:, None] - positions, axis=2) / 0.529177
    np.fill_diagonal(distances, 1)
    coulomb = charges[:, None] * charges / distances
    np.fill_diagonal(coulomb, 0.5 * charges**2.4)
    found = np.sort(np.abs(np.linalg.eigvalsh(coulomb)))[::-1]
    return np.pad(found, (0, size - found.size))


# %%
# The target is the energy of the molecule minus those of its atoms, in kcal/mol.

package = Path(find_spec("qm9pack").submodule_search_locations[0])
columns = ["Elements", "XYZ_Ang", "InternalEnergy_0K_au"]
table = pd.read_csv(
    package / "data" / "qm9_part1.csv",
    usecols=columns,
    skiprows=range(1, 2000),
    nrows=6000,
)
table = table.sample(600, random_state=0)
elements = [ast.literal_eval(text) for text in table["Elements"]]
positions = [np.array(ast.literal_eval(text)) for text in table["XYZ_Ang"]]
X = np.stack(
    [eigenvalues(*molecule) for molecule in zip(elements, positions, strict=True)]
)
atoms = np.array(
    [sum(ENERGIES[element] for element in molecule) for molecule in elements]
)
y = 627.5095 * (table["InternalEnergy_0K_au"].to_numpy() - atoms)

# %%
# λ and γ are chosen for the Laplacian kernel; ``train_sizes`` adds fits to fractions of
# the rows.

search = KernelRidgeCV(
    np.geomspace(1e-10, 1e-2, 5),
    kernel="laplacian",
    gamma=[1e-4, 3e-4, 1e-3],
    fit_intercept=True,
    cv=5,
    train_sizes=(0.125, 0.25, 0.5),
)
search.fit(X, y)
curve = search.learning_curve_
print(search.best_params_)
print(fill(curve["conclusion"], 88))

# %%
# Left: each molecule, predicted by the model without it. Right: root mean square error
# over the number of molecules.

errors = np.sqrt(-curve["mean_test_score"])
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
left.plot(y, y - search.loo_residuals(), ".", markersize=3)
left.plot([y.min(), y.max()], [y.min(), y.max()], "k", linewidth=0.8)
left.set(xlabel="energy (kcal/mol)", ylabel="predicted without the molecule")
right.semilogx(curve["train_sizes"], errors, "o-")
right.set(xlabel="molecules in training", ylabel="error (kcal/mol)", ylim=(0, None))
right.set_xticks(curve["train_sizes"], curve["train_sizes"])
right.minorticks_off()
