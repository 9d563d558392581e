"""
Two noisy rings
===============

Probabilities of two classes that no straight line divides.

One label in ten is wrong. Kernel logistic regression still finds the rings, if the
regularisation strength λ (``alpha``) is right. A small λ follows every wrong label,
a large λ blurs the rings. Cross-validation chooses λ.
"""

# %%
# Two rings with radii 1 and 2.

import matplotlib.pyplot as plt
import numpy as np

from dkrr import KernelLogisticRegressionCV

rng = np.random.default_rng(0)
n = 240
radius = np.repeat([1.0, 2.0], n // 2) + 0.2 * rng.standard_normal(n)
angle = rng.uniform(0, 2 * np.pi, n)
X = np.column_stack([radius * np.cos(angle), radius * np.sin(angle)])
y = np.repeat(["inner", "outer"], n // 2)
wrong = rng.random(n) < 0.1
y[wrong] = np.where(y[wrong] == "inner", "outer", "inner")

# %%
# All values of λ are compared by the same five folds; the score is the log loss.

alphas = [0.01, 0.1, 1, 10]
search = KernelLogisticRegressionCV(alphas, kernel="rbf", gamma=1.0, cv=5).fit(X, y)
for alpha, score in zip(alphas, search.cv_results_["mean_test_score"], strict=True):
    print(f"λ = {alpha:<5} log loss {-score:.3f}")

# %%
# The line is where both classes are equally likely.

axis = np.linspace(-3, 3, 120)
grid = np.stack(np.meshgrid(axis, axis), axis=-1)
inner = search.predict_proba(grid.reshape(-1, 2))[:, 0].reshape(grid.shape[:2])

figure, axes = plt.subplots(figsize=(6, 5), layout="constrained")
levels = np.linspace(0, 1, 11)
filled = axes.contourf(axis, axis, inner, levels, cmap="RdBu", alpha=0.7)
axes.contour(axis, axis, inner, [0.5], colors="black")
for label, colour in (("inner", "tab:blue"), ("outer", "tab:red")):
    points = X[y == label]
    axes.scatter(
        *points.T, s=14, color=colour, edgecolor="white", linewidth=0.5, label=label
    )
axes.set_aspect("equal")
axes.legend(loc="upper right", title="label")
figure.colorbar(filled, label="probability of the inner ring")
