"""
Many models
===========

A loop over γ and λ that continues where it was interrupted.

A model that exists at its path is complete, so the loop skips it. Many targets do not
need many models: as columns of y they share one kernel matrix.
"""

import sys
from itertools import product
from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt
import numpy as np

import dkrr

rng = np.random.default_rng(0)
X = rng.normal(size=(500, 4))
y = np.column_stack([np.sin(X).sum(axis=1), X[:, 0] * X[:, 1]])  # two targets

folder = Path(sys.argv[1] if len(sys.argv) > 1 else mkdtemp())
for gamma, alpha in product((0.01, 0.1, 1.0), (1e-4, 1e-2)):
    path = folder / f"rbf-{gamma}-{alpha}.zarr"
    if path.exists():
        continue
    # A long fit resumes, too, with store=folder / f"{path.stem}-run.zarr".
    model = dkrr.KernelRidge(kernel="rbf", gamma=gamma, alpha=alpha).fit(X, y)
    dkrr.save(model, path)
    print(f"{path.name}: residual {model.solve_result_.residual:.1e}")

# %%
# Their errors for new rows.

new = rng.normal(size=(500, 4))
truth = np.column_stack([np.sin(new).sum(axis=1), new[:, 0] * new[:, 1]])
paths = sorted(folder.glob("rbf-*.zarr"))
errors = [np.sqrt(np.mean((dkrr.load(path).predict(new) - truth) ** 2)) for path in paths]
figure, axes = plt.subplots(figsize=(8, 3), layout="constrained")
axes.barh([path.stem for path in paths], errors)
axes.set(xlabel="root mean square error")
