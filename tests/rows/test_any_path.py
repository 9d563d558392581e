"""Paths of any text: an array, or an InputError that names the argument."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dkrr.errors import InputError
from dkrr.rows import as_rows, load_array, load_labels, open_path

PARTS = st.sampled_from([
    ".", "..", "/", "//", "::", ":", "x.npy", "x.npz", "x.zarr", "zarr.json", "://", "file://", "memory://",
    "nowhere://", "s3://", "x.csv", ".parquet", "http://", "*", "~", "%00", "é",
])  # fmt: skip
ODD = st.sampled_from(["", " ", "\n", "\0", "\ud800", "a" * 300])
TEXTS = st.lists(PARTS | ODD | st.text(max_size=6), max_size=6).map("".join)
BYTES = st.binary(max_size=200)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paths")
    np.save(folder / "x.npy", np.eye(3))
    np.savez(folder / "x.npz", a=np.eye(3), b=np.array([{}], object))
    (folder / "x.zarr").mkdir()
    return folder


@settings(max_examples=100, deadline=None)
@given(text=TEXTS, reader=st.sampled_from([open_path, as_rows, load_array, load_labels]))
def test_any_text_is_a_path_or_refused_by_name(folder, text, reader):
    for path in (text, str(folder) + "/" + text):
        found = ""
        try:
            reader(path, "rows_of_mine")
        except InputError as error:
            found = str(error)
        assert not found or "rows_of_mine" in found


@settings(max_examples=40, deadline=None)
@given(
    head=st.sampled_from([b"", b"\x93NUMPY\x01\x00v\x00", b"\x93NUMPY\x01\x00", b"PK\x03\x04", b"PK\x05\x06"]),
    rest=BYTES,
)
def test_any_bytes_are_an_array_or_refused_by_name(folder, head, rest):
    for name in ("bytes.npy", "bytes.npz", "bytes.npz::a"):
        path = Path(folder, name.partition("::")[0])
        path.write_bytes(head + rest)
        with pytest.raises(InputError, match="rows_of_mine"):
            as_rows(str(folder / name), "rows_of_mine")
        path.unlink()
