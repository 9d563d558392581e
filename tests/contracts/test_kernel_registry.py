"""What a class of kernels has to have, and what is said by name where something is missing."""

import importlib
import inspect
import pkgutil
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar, get_args

import numpy as np
import pytest

import dkrr.kernels
from dkrr.errors import InputTypeError
from dkrr.kernels import RBF, Kernel, Matern
from dkrr.kernels.names import SETTING_DEFAULTS
from dkrr.kernels.registry import KERNELS, NAMED
from dkrr.typing import KernelName
from tests import precise
from tests.contracts.kernels import ELSEWHERE, ROWS, Case, Row, lacks_row, lacks_values
from tests.oracles import naive_gram

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "api" / "kernels.rst"
NOT_IN_THE_TABLE = {
    "CallableKernel": "descriptions name the function, which is given again",
    "MapKernel": "described by its map, in dkrr.features",
    "CentredLinear": "made by fits only",
}
"""Classes without a line in the table, and why."""


def classes():
    """Classes of kernels in the package that can be made."""
    for module in (
        importlib.import_module(f"dkrr.kernels.{m.name}") for m in pkgutil.iter_modules(dkrr.kernels.__path__)
    ):
        for kind in vars(module).values():
            is_own = isinstance(kind, type) and issubclass(kind, Kernel) and kind.__module__ == module.__name__
            if is_own and kind.__name__[0] != "_" and not inspect.isabstract(kind):
                yield kind


def missing(kind):
    """What a class of kernels lacks, and where it is added."""
    name, where = kind.__name__, f"{kind.__module__}.{kind.__name__}"
    if kind.__name__ in NOT_IN_THE_TABLE:
        return
    if kind not in KERNELS.values():
        line = f"from {kind.__module__} import {name} as {name}"
        yield f"{where} is not in the table: add `{line}` to dkrr/kernels/registry.py"
    if f"   {name}" not in REFERENCE.read_text().splitlines():
        yield f"{where} is not in the reference: add the line `   {name}` to docs/api/kernels.rst"
    if kind.names and kind.tag not in kind.names:
        yield f"{where} has the names {kind.names} and the tag {kind.tag!r}: add the tag to its names"
    for each in set(kind.names) - set(get_args(KernelName)):
        yield f"{where} has the name {each!r}, unknown to type checkers: add it to KernelName in dkrr/typing.py"
    for parameter in fields(kind):
        common = SETTING_DEFAULTS.get(parameter.name)
        if kind.names and common is not None and parameter.default != common:
            yield f"{where}.{parameter.name} has the default {parameter.default} and by name {common}: take this"
    if kind in ELSEWHERE:
        return
    row = ROWS.get(kind)
    if row is None or not row.cases:
        yield lacks_row(kind)
        return
    yield from (lacks_values(kind, each.name) for each in fields(kind) if each.name not in row.takes)


def test_every_class_of_kernels_has_what_it_needs():
    found = list(classes())
    assert len(found) >= len(KERNELS)
    assert all((ROOT / file).exists() for file in ELSEWHERE.values())
    if said := [text for kind in found for text in missing(kind)]:
        pytest.fail("\n".join(said), pytrace=False)
    assert get_args(KernelName) == tuple(NAMED), "KernelName in dkrr/typing.py is in alphabetical order"


@dataclass(frozen=True)
class Wave(Kernel):
    """A class that is in no table."""

    tag: ClassVar[str] = "wave"
    names: ClassVar[tuple[str, ...]] = ("waves",)
    degree: int = 2

    def _block_writer(self, X, Y, dtype):
        raise NotImplementedError

    def _diagonal(self, X):
        raise NotImplementedError


def test_what_is_missing_is_said_by_name_and_place(monkeypatch):
    said = "\n".join(missing(Wave))
    for text in (
        "add `from tests.contracts.test_kernel_registry import Wave as Wave` to dkrr/kernels/registry.py",
        "add the line `   Wave` to docs/api/kernels.rst",
        "add the tag to its names",
        "Wave has the name 'waves', unknown to type checkers: add it to KernelName in dkrr/typing.py",
        "Wave.degree has the default 2 and by name 3",
        "add its row to ROWS in tests/contracts/kernels.py, k.Wave: Row(",
    ):
        assert text in said
    monkeypatch.setitem(ROWS, Wave, Row(lambda *_: 0.0, [Case(Wave())]))
    assert "Wave.degree may be anything as far as the tests know: add {'degree': POSITIVE}" in "\n".join(missing(Wave))
    monkeypatch.delitem(ROWS, Wave)
    for formula in (naive_gram, precise.gram):
        with pytest.raises(LookupError, match="Wave has no naive formula"):
            formula(Wave(), np.ones((1, 1)))


def test_kernels_of_numbers_take_their_parameters_by_name_and_say_so():
    """By position they would mean other kernels than scikit-learn's RBF(0.5), Matern(0.5, 1.5)."""
    section = REFERENCE.read_text().split(".. rubric:: Rows of numbers")[1].split(".. rubric::")[0]
    for kind in (getattr(dkrr.kernels, name) for name in re.findall(r"^   (\w+)$", section, re.M)):
        assert all(one.kind is one.KEYWORD_ONLY for one in inspect.signature(kind).parameters.values()), kind
    with pytest.raises(InputTypeError, match=r"^RBF\(0.5\) gives parameters .* expected RBF\(gamma=\.\.\.\)$"):
        RBF(0.5)
    with pytest.raises(InputTypeError, match=r"expected Matern\(nu=\.\.\., length_scale=\.\.\.\)$"):
        Matern(0.5, 1.5)
    length = (
        r"^RBF has no parameter 'length_scale'; expected one of: 'gamma', where gamma = 1 / \(2 \* length_scale\*\*2\)$"
    )
    with pytest.raises(InputTypeError, match=length):
        RBF(length_scale=2.0)
    with pytest.raises(InputTypeError, match="^Matern has no parameter 'mu'; expected one of: 'nu', 'length_scale'$"):
        Matern(mu=0.5)
    assert Matern(nu=1.5, length_scale=2.0).set_params(nu=0.5) == Matern(length_scale=2.0, nu=0.5)
