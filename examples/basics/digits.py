"""
Handwritten digits
==================

Ten classes, and the digits that the model finds hardest.

scikit-learn's 1,797 small pictures of digits: one quarter of them trains a softmax of ten
kernel functions, the others are the test.
"""

# %%
# Pixels are numbers from 0 to 16, 64 of them in a picture.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from dkrr import KernelLogisticRegression

X, y = load_digits(return_X_y=True)
X = X / 16
numbers = np.arange(len(X))
train, test = numbers[::4], numbers[numbers % 4 > 0]

# %%
# Newton's method ends at a relative gradient of 1e-6.

model = KernelLogisticRegression(alpha=0.01, kernel="rbf", gamma=0.1, tol=1e-6)
model.fit(X[train], y[train])
steps = model.solve_result_.steps
print(f"{len(steps)} Newton steps, relative gradient {steps[-1].gradient:.1e}")
print(f"{model.score(X[test], y[test]):.1%} of the test digits are right")

# %%
# The eight test digits whose right class has the lowest probability.

probabilities = model.predict_proba(X[test])
of_the_right = probabilities[np.arange(test.size), y[test]]
guesses = model.predict(X[test])

figure, panels = plt.subplots(2, 4, figsize=(7, 4), layout="constrained")
for axes, k in zip(panels.flat, np.argsort(of_the_right), strict=False):
    axes.imshow(X[test[k]].reshape(8, 8), cmap="gray_r")
    axes.set_title(
        f"{y[test[k]]}: {of_the_right[k]:.0%}, predicted {guesses[k]}", fontsize=9
    )
    axes.set_xticks([])
    axes.set_yticks([])
