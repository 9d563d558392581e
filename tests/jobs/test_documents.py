"""Where values of TOML and YAML files are."""

import json
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dkrr.errors import InputError
from dkrr.jobs.documents import JobError, read_document

TOML = '''# a comment with [brackets] and a = 1

[fit] # the head
x = "a.npy" # = not a key
"quoted key" = 1
'literal.key' = 2
text = """
y = "in a string"
[model]
"""
many = [
  1, # one
  2,
]
inner = { a = 1, b = { c = [1, 2] } }
dotted.key.more = 3

[[model]]
name = "first"
  [model.grid]
  alpha = [1, 2]

[[model]]
name = \'\'\'
second\'\'\'
[model.grid]
gamma = [
  1e-3]
[[model.part]]
a = 1
[[model.part]]
a = 2
'''


def test_lines_of_toml(tmp_path):
    file = tmp_path / "job.toml"
    file.write_text(TOML)
    found = read_document(file)
    assert found.content == tomllib.loads(TOML)
    rows = TOML.split("\n")
    for keys, begin in {
        ("fit",): "[fit]",
        ("fit", "x"): "x =",
        ("fit", "quoted key"): '"quoted',
        ("fit", "literal.key"): "'literal",
        ("fit", "text"): "text",
        ("fit", "many"): "many",
        ("fit", "many", 1): "many",
        ("fit", "inner", "b", "c", 0): "inner",
        ("fit", "dotted", "key", "more"): "dotted",
    }.items():
        assert rows[found.line(keys) - 1].startswith(begin), keys
    assert [found.line(("model", k, "name")) for k in (0, 1)] == [19, 24]
    assert [found.line(("model", k)) for k in (0, 1)] == [18, 23]
    assert found.line(("model", 0, "grid")) == 20 and found.line(("model", 0, "grid", "alpha")) == 21
    assert found.line(("model", 1, "grid", "gamma")) == 27
    assert [found.line(("model", 1, "part", k, "a")) for k in (0, 1)] == [30, 32]
    assert found.line(("model", 1, "unknown")) == 23, "of what holds it"


keys = st.text("ab.\"' \n#=[]λ", min_size=0, max_size=4)
scalars = st.one_of(st.integers(-9, 9), st.booleans(), st.text("a\n\"'\\#[=", max_size=5))
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3), max_leaves=5)


@given(st.lists(st.tuples(st.dictionaries(keys, values, max_size=3), st.integers(0, 2)), max_size=4))
def test_lines_of_any_toml(tmp_path_factory, tables):
    """Every key is found on the line where it was written, whatever its name and the values before it."""
    text, expected = "", {}
    for number, (table, blank) in enumerate(tables):
        text += "\n# [x]\n" * blank + "[[t]]\n"
        expected["t", number] = text.count("\n")
        for key, value in table.items():
            expected["t", number, key] = text.count("\n") + 1
            text += f"{json.dumps(key)} = {json.dumps(value, indent=1)}\n"
    file = tmp_path_factory.mktemp("toml") / "job.toml"
    file.write_text(text)
    found = read_document(file)
    assert {keys: found.line(keys) for keys in expected} == expected


def test_lines_and_values_of_yaml(tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text(
        "# comment\nfit: &base\n  x: a.npy\n  gamma: 1e-3\n  tol: .5\n  flag: true\n  text: no\n  time: 12:30\n"
        "  n: 010\n  empty:\n  date: 2026-01-02\n"
        "model:\n  - name: first\n    grid: {alpha: [1, 2],\n      gamma: [3]}\n"
        "  - <<: *base\n    x: other\n"
    )
    found = read_document(file)
    fit = found.content["fit"]
    assert fit == {
        "x": "a.npy",
        "gamma": 1e-3,
        "tol": 0.5,
        "flag": True,
        "text": "no",
        "time": "12:30",
        "n": 10,
        "empty": None,
        "date": "2026-01-02",
    }
    assert found.content["model"][1] == {**fit, "x": "other"}
    assert found.line(("fit", "gamma")) == 4 and found.line(("model", 0, "grid", "gamma")) == 15
    assert found.line(("model", 1, "x")) == 17 and found.line(("model", 1)) == 16


@pytest.mark.parametrize(
    ("name", "text", "line", "message"),
    [
        ("a.toml", "a = 1\nb = = 2\n", 2, "not TOML"),
        ("a.toml", "a = 1\n\n[t]\nb = 1\nb = 2\n", 5, "'b = 2' gives again"),
        ("a.toml", "[t]\n[t]\n", 2, "'[t]' gives again"),
        ("a.toml", 'a = """\n\n', 3, "not TOML"),
        ("a.yaml", "a: 1\nb: [1\n", 3, "not YAML"),
        ("a.yaml", "a:\n  b: 1\n  b: 2\n", 3, "the key b is given twice"),
        ("a.yml", "- a\n", 1, "expected keys"),
        ("a.yaml", "a: !!python/object:os.system x\n", 1, "not YAML"),
        ("a.yaml", "a: 1\n---\nb: 2\n", 2, "not YAML"),
    ],
)
def test_what_is_not_a_document(tmp_path, name, text, line, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(JobError) as caught:
        read_document(tmp_path / name)
    (problem,) = caught.value.problems
    assert problem.line == line and message in problem.message
    assert str(caught.value).startswith(f"{tmp_path / name}:{line}: ")


@pytest.mark.parametrize("text", ["a: &a [*a]\n", "a: " + "[" * 3000 + "]" * 3000])
def test_endless_values_are_refused(tmp_path, text):
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(InputError, match="nested too deeply"):
        read_document(tmp_path / "a.yaml")


def test_a_few_lines_that_stand_for_many_values_are_refused(tmp_path):
    rows = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    rows += [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 10)}]" for k in range(1, 9)]
    (tmp_path / "a.yaml").write_text("\n".join(rows))
    with pytest.raises(InputError, match="stands for more than"):
        read_document(tmp_path / "a.yaml")


@pytest.mark.parametrize(("name", "content"), [("a.json", b"{}"), ("a.toml", b"\xff\xfe"), ("none.toml", None)])
def test_files_that_cannot_be_read(tmp_path, name, content):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match="JOB is .*expected"):
        read_document(tmp_path / name)
