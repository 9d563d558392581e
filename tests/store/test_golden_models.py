"""Models that released versions wrote are loaded and predict the same numbers; a new format has a new number."""

import json

import pytest

import dkrr
from dkrr.store.description import FORMAT_VERSION
from dkrr.store.format import read_group
from tests.oracles import assert_close
from tests.tools.golden_models import FOLDER, MODELS, predictions

WRITTEN = [path for path in sorted(FOLDER.glob("*/*")) if path.is_dir()]
OF_THIS_FORMAT = {path.name: path for path in WRITTEN if read_group(str(path))["format"] == FORMAT_VERSION}
NOT_READ_AGAIN = ("report", "solve", "versions")


@pytest.mark.filterwarnings("ignore:the transformer of .* was fitted with scikit-learn")
@pytest.mark.parametrize("path", WRITTEN, ids=[str(path.relative_to(FOLDER)) for path in WRITTEN])
def test_a_model_of_a_released_version_predicts_the_same_numbers(path):
    assert dkrr.verify(path).is_whole
    expected = json.loads(path.with_suffix(".json").read_text())
    assert_close(predictions(path.name, dkrr.load(path)), expected, 1e-9)


def form_of(value):
    """Names and types in a description, without its values."""
    if isinstance(value, dict):
        return {name: form_of(one) for name, one in value.items() if name not in NOT_READ_AGAIN}
    return [form_of(value[0])] if isinstance(value, list) and value else type(value).__name__


@pytest.mark.skipif(not OF_THIS_FORMAT, reason="no release has this format")
@pytest.mark.parametrize("name", MODELS)
def test_what_is_written_does_not_change_within_a_format(tmp_path, name):
    """Else a version of the same format could not load it."""
    golden = OF_THIS_FORMAT[name]
    dkrr.save(MODELS[name](), tmp_path / name, uncertainty=name == "dual")
    now, then = (sorted(file.relative_to(path) for file in path.rglob("*")) for path in (tmp_path / name, golden))
    assert now == then
    ours, theirs = (form_of(read_group(str(path))) for path in (tmp_path / name, golden))
    assert ours == theirs, "give FORMAT_VERSION a new number, or write the entries that it has"


def test_the_models_of_a_version_are_complete_and_small():
    versions = {path.parent for path in WRITTEN}
    assert versions
    for version in versions:
        assert {path.name for path in WRITTEN if path.parent == version} >= {"dual", "search", "classes", "documents"}
        assert sum(file.stat().st_size for file in version.rglob("*") if file.is_file()) < 50_000
