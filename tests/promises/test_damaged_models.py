"""What a saved model returns is what was saved, or an error that names it: one damage of each kind, drawn at random.

Many more, and those to runs, are tests/nightly/test_chaos.py and `python -m tests.nightly.chaos damage`.
"""

import pytest

from tests.nightly.chaos.damage import OPERATIONS, trial
from tests.nightly.chaos.outcomes import GOOD


@pytest.mark.parametrize("number", range(len(OPERATIONS)), ids=OPERATIONS)
def test_a_damaged_model_is_refused_by_name_or_predicts_the_same(number):
    found = trial("models", 4, number, ["RBF", "sparse rows", "logistic"], [])
    assert found["outcome"] in GOOD, (found["what"], found["detail"])
