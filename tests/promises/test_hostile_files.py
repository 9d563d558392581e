"""Files of rows and targets from elsewhere: none is waited for, none takes what it only claims or leads elsewhere."""

import os
import resource
import socket
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import OneHotEncoder

import dkrr
from dkrr.data import as_rows, load_array
from dkrr.data.open import load_labels
from dkrr.errors import DkrrError, InputError

READERS = (as_rows, load_array, load_labels)
X = np.arange(6.0).reshape(3, 2)


def refused(path, match, readers=READERS):
    """Each way to read a path ends at once, with one line and without the memory for what is claimed."""
    for read in readers:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(InputError, match=match) as caught:
            read(str(path), "X")
        assert "\n" not in str(caught.value) and str(caught.value).startswith("X")
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000, "KiB"


def npy(shape, descr="<f8", fortran=False, content=bytes(48), version=1):
    """Content of a .npy file with a header of one's choice."""
    header = f"{{'descr': {descr!r}, 'fortran_order': {fortran}, 'shape': {shape}, }}\n".encode()
    length = struct.pack("<H" if version == 1 else "<I", len(header))
    return b"\x93NUMPY" + bytes([version, 0]) + length + header + content


HEADERS = {
    "21 TiB": (npy((3 * 10**12, 1)), "its header says 21.8 TiB, and there are"),
    "more than a number of 64 bits": (npy((2**62, 2**62)), "its header says"),
    "negative": (npy((-3, 2)), r"shape \(-3, 2\); expected whole numbers"),
    "pickle": (npy((3, 2), "|O"), "only pickle would read"),
    "values of no size": (npy((10**17,), "<U0"), "expected numbers or text"),
    "a header of 4 GiB": (b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(50), "its header has 4,294,967,295 bytes"),
    "a long header": (b"\x93NUMPY\x02\x00" + struct.pack("<I", 20000) + b" " * 20000, "its header has 20,000 bytes"),
    "a deep header": (b"\x93NUMPY\x01\x00" + struct.pack("<H", 9000) + b"-" * 9000, "cannot be read"),
}


class TestNumpyFiles:
    @pytest.mark.parametrize("name", HEADERS)
    def test_headers_that_claim_more_than_the_file_are_refused(self, tmp_path, name):
        content, match = HEADERS[name]
        (tmp_path / "x.npy").write_bytes(content)
        refused(tmp_path / "x.npy", match)
        for kind in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            with zipfile.ZipFile(tmp_path / "x.npz", "w", kind) as archive:
                archive.writestr("a.npy", content)
            refused(f"{tmp_path}/x.npz::a", match)

    @settings(max_examples=100)
    @given(
        shape=st.lists(st.integers(0, 4) | st.integers(-(2**70), 2**70), max_size=3).map(tuple),
        descr=st.sampled_from(["<f8", ">f4", "|i1", "|b1", "<U3", "|S0", "<M8[s]", "<c16", "|O", "|V8"]),
        fortran=st.booleans(),
        n_bytes=st.integers(0, 300),
        version=st.sampled_from([1, 2, 3]),
        damaged=st.none() | st.tuples(st.integers(0, 90), st.integers(0, 255)),
    )
    def test_any_header_of_npy_is_read_or_refused(self, tmp_path, shape, descr, fortran, n_bytes, version, damaged):
        content = bytearray(npy(shape, descr, fortran, bytes(n_bytes), version))
        if damaged is not None:
            content[min(damaged[0], len(content) - 1)] = damaged[1]
        (tmp_path / "x.npy").write_bytes(content)
        with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a.npy", bytes(content))
        for path in (f"{tmp_path}/x.npy", f"{tmp_path}/x.npz::a"):
            for read in READERS:
                try:
                    found = read(path, "X")
                except DkrrError as error:
                    found = str(error)
                if isinstance(found, str):
                    assert "\n" not in found
                else:
                    assert np.prod(found.shape) * np.dtype(found.dtype).itemsize <= 8 * len(content)

    @pytest.mark.parametrize(
        ("at", "layout", "values"),  # size; compressed size, and size; methods; encrypted
        [(24, "<I", [4 * 10**9]), (20, "<II", [4 * 10**9] * 2), (10, "<H", [99]), (10, "<H", [14]), (8, "<H", [1])],
    )
    def test_damaged_directories_of_npz_are_refused(self, tmp_path, at, layout, values):
        np.savez_compressed(tmp_path / "x.npz", a=X)
        raw = bytearray((tmp_path / "x.npz").read_bytes())
        struct.pack_into(layout, raw, raw.index(b"PK\x01\x02") + at, *values)
        (tmp_path / "x.npz").write_bytes(raw)
        refused(f"{tmp_path}/x.npz::a", "not as NumPy writes it")

    @pytest.mark.parametrize(
        ("names", "match"),
        [
            ("aa", "two arrays of one name"),
            (range(1001), "it has 1,001 arrays; expected at most 1,000"),
            (range(100), "no array 'a'; expected one of 0"),
        ],
        ids=["twice", "many", "none"],
    )
    @pytest.mark.filterwarnings("ignore:Duplicate name")
    def test_claims_of_members_of_npz_are_refused(self, tmp_path, monkeypatch, names, match):
        monkeypatch.setattr("dkrr.data.array_files.MAX_MEMBERS", 1000)
        with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
            for name in names:
                archive.writestr(f"{name}.npy", npy((3, 2)) if name == "a" else b"")
        refused(f"{tmp_path}/x.npz::a", match, READERS if len(names) <= 100 else [as_rows])

    def test_what_does_not_fit_in_memory(self, tmp_path, monkeypatch):
        np.savez_compressed(tmp_path / "x.npz", a=np.zeros(10**6))
        zarr.create_array(f"{tmp_path}/y.zarr", shape=(10**13,), chunks=(1000,), dtype="f8")
        refused(tmp_path / "y.zarr", "without its chunks c/0, c/1, .*, c/7, ...;")
        monkeypatch.setattr("dkrr.data.array_files.available_bytes", lambda: 10**6)
        refused(f"{tmp_path}/x.npz::a", "x.npz::a takes 7.63 MiB of memory, and 977 KiB are available")

    @pytest.mark.parametrize("layout", ["coo", "csc", "dia", "bsr", "csr"])
    def test_sparse_rows_that_claim_more_or_whose_parts_do_not_fit_are_refused(self, tmp_path, layout):
        one, zero = np.ones((1,) * {"dia": 2, "bsr": 3}.get(layout, 1)), np.array([0])
        parts = {"row": zero, "col": zero, "offsets": zero, "indices": zero, "indptr": np.array([0, 1, 1, 1])}
        good = {"format": layout.encode(), "shape": np.array([1, 3]), "data": one, **parts}
        for shape in ([10**13, 3], [-1, 3], [2**62, 2**62], [3], "x"):
            np.savez(tmp_path / "x.npz", **good | {"shape": np.array(shape)})
            refused(tmp_path / "x.npz", "X", [as_rows])
        for other in (b"evil", np.array([1, 2]), b"lil"):
            np.savez(tmp_path / "x.npz", **good | {"format": other})
            refused(tmp_path / "x.npz", "cannot read", [as_rows])


class TestPlaces:
    @pytest.mark.parametrize("end", ["npy", "npz", "csv", "csv.gz", "parquet", "arrow", "h5", "zarr", "other"])
    def test_what_is_not_a_file_is_refused(self, tmp_path, monkeypatch, end):
        monkeypatch.chdir(tmp_path)  # the address of a socket is short
        os.mkfifo(f"pipe.{end}")
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(f"socket.{end}")
        Path(f"folder.{end}").mkdir()
        for link, target in {"device": "/dev/zero", "circle": f"circle.{end}", "nothing": "gone"}.items():
            Path(f"{link}.{end}").symlink_to(target)
        for kind in ("pipe", "socket", "device"):
            refused(f"{kind}.{end}", "is a pipe, a socket or a device; expected a file or a folder")
        refused(f"folder.{end}", "is a folder|no files of a table|not a Zarr array")
        refused(f"circle.{end}", "[Ll]inks|does not exist")
        refused(f"nothing.{end}", "does not exist")

    @pytest.mark.parametrize(
        "name", ["a.csv", "a.parquet", "a.arrow", "year=1/a.parquet", "x.zarr/zarr.json", "x.zarr/member/zarr.json"]
    )
    def test_other_things_in_folders_are_not_opened(self, tmp_path, name):
        place = tmp_path / ("x.zarr" if "zarr" in name else "table")
        path = place / name.removeprefix("x.zarr/")
        if "/m/" in name:
            zarr.create_group(place)
        path.parent.mkdir(parents=True)
        os.mkfifo(path)
        refused(place, "is a pipe")

    @pytest.mark.parametrize("name", ["X", "y", "sample_weight"])
    def test_every_way_in_refuses_what_is_not_a_file(self, tmp_path, name):
        np.save(tmp_path / "x.npy", X)
        os.mkfifo(tmp_path / "pipe.npy")
        with pytest.raises(InputError, match="is a pipe"):
            dkrr.KernelRidge().fit(**dict.fromkeys("Xy", tmp_path / "x.npy") | {name: tmp_path / "pipe.npy"})


class TestTables:
    """What Arrow takes as it is in memory and in its own files, and what pandas writes into its schemas."""

    @pytest.fixture
    def table(self):
        pa = pytest.importorskip("pyarrow")
        text = pa.Array.from_buffers(
            pa.string(), 3, [None, pa.py_buffer(np.array([0, 1, 2**30, 3], "i4")), pa.py_buffer(b"abc")]
        )
        category = pa.DictionaryArray.from_arrays(np.array([0, 1, 2**20], "i4"), ["a", "b"], safe=False)
        return pa.table({"a": [1.0, 2.0, 3.0], "text": text, "category": category})

    @pytest.mark.parametrize("column", ["text", "category"])
    @pytest.mark.parametrize("kind", ["new_file", "new_stream", "memory", "batch"])
    def test_values_at_places_out_of_range_are_refused(self, tmp_path, table, column, kind):
        import pyarrow.ipc

        path = str(tmp_path / "x.arrow")
        if kind.startswith("new"):
            with getattr(pyarrow.ipc, kind)(path, table.schema) as writer:
                writer.write_table(table)
        source = {"memory": table, "batch": table.to_batches()[0]}.get(kind, path)
        with pytest.raises(InputError, match="cannot read .*(out of bounds|[Oo]ffset)"):
            dkrr.open_table(source).select(column).to_pandas()
        with pytest.raises(InputError, match="cannot read"):
            dkrr.KernelRidge(transformer=OneHotEncoder()).fit(dkrr.open_table(source).select(column), [1, 2, 3])

    def test_columns_in_memory_that_are_not_used_are_not_read(self, table):
        assert np.array_equal(dkrr.open_table(table).select("a").numbers(0, 3)[:, 0], [1, 2, 3])

    def test_texts_of_parquet_that_are_not_unicode_are_refused(self, tmp_path):
        pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pa.table({"a": ["kept here"] * 9}), tmp_path / "x.parquet", compression="none")
        raw = (tmp_path / "x.parquet").read_bytes()
        (tmp_path / "x.parquet").write_bytes(raw.replace(b"kept here", b"kept\xffhere"))
        with pytest.raises(InputError, match="UTF8"):
            dkrr.open_table(tmp_path / "x.parquet").to_pandas()

    @pytest.mark.parametrize(
        "written",
        [b"{x", b"\xff\xfe\xff", b"[1]", b"3", b"{}", b"[" * 10**5, b'{"index_columns": 4}', b'{"index_columns": "a"}'],
        ids=range(8),
    )
    def test_damaged_metadata_of_pandas_are_refused(self, tmp_path, written):
        pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        table = pa.table({"a": [1.0]}).replace_schema_metadata({b"pandas": written})
        parquet.write_table(table, tmp_path / "x.parquet")
        with pa.ipc.new_file(tmp_path / "x.arrow", table.schema) as writer:
            writer.write_table(table)
        for source in (table, tmp_path / "x.parquet", tmp_path / "x.arrow"):
            with pytest.raises(InputError, match="metadata of pandas that are not JSON with a list of index_columns"):
                dkrr.open_table(source)

    def test_metadata_of_pandas_may_name_columns_that_do_not_exist(self):
        pa = pytest.importorskip("pyarrow")
        written = b'{"index_columns": ["gone", {"kind": "range"}, 3, [[]], "b"]}'
        table = pa.table({"a": [1.0], "b": [2.0]}).replace_schema_metadata({b"pandas": written})
        assert dkrr.open_table(table).names == ("a",)

    def test_tables_without_columns_are_refused(self, tmp_path):
        pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        table = pa.table({})
        parquet.write_table(table, tmp_path / "x.parquet")
        for kind in ("new_file", "new_stream"):
            with getattr(pa.ipc, kind)(tmp_path / f"{kind}.arrow", table.schema) as writer:
                writer.write_table(table)
        for source in (table, *tmp_path.iterdir()):
            with pytest.raises(InputError, match="has no columns; expected a table with at least one"):
                dkrr.open_table(source)


class TestHdf5:
    @pytest.fixture
    def path(self, tmp_path):
        h5py = pytest.importorskip("h5py")
        with h5py.File(tmp_path / "other.h5", "w") as file:
            file["d"] = X
        (tmp_path / "secret.bin").write_bytes(X.tobytes())
        with h5py.File(tmp_path / "x.h5", "w") as file:
            group = file.create_group("g")
            group["d"], group["itself"], group["root"] = X, group, file["/"]
            links = {"self": "/self", "a": "/b", "b": "/a", "grows": "/grows/grows", "soft": "g/itself/d"}
            for name, target in (links | {"relative": "./g/d", "nowhere": "gone", "to external": "/file/d"}).items():
                file[name] = h5py.SoftLink(target)
            file["external"], file["file"] = h5py.ExternalLink("other.h5", "d"), h5py.ExternalLink("other.h5", "/")
            file.create_dataset("stored elsewhere", X.shape, "f8", external=[("secret.bin", 0, X.nbytes)])
            layout = h5py.VirtualLayout(X.shape, "f8")
            layout[:] = h5py.VirtualSource("other.h5", "d", X.shape)
            file.create_virtual_dataset("virtual", layout)
            file["none"], file["type"] = h5py.Empty("f8"), np.dtype("f8")
            file.create_dataset("claim", (10**13,), "f8", chunks=(1000,))
        return tmp_path / "x.h5"

    @pytest.mark.parametrize(
        ("match", "members"),
        {
            "leads in a circle": ["self", "a", "grows"],
            "external link to 'other.h5'; open that file itself": ["external", "file/d", "to external"],
            "in other files": ["stored elsewhere", "virtual"],
            "without numbers": ["none"],
            "no data set '.*'; expected one of x.h5::claim, x.h5::g/d, x.h5::none": ["nowhere", "type", "../x"],
            "no data set": ["g", "g/d/d", "", "a\x1b[31m"],
        }.items(),
    )
    def test_links_out_of_hdf5_are_refused(self, path, match, members):
        for member in members:
            refused(f"{path}::{member}", match)

    @pytest.mark.parametrize("member", ["g/d", "/g/d", "g/itself/itself/d", "g/root/g/d", "soft", "relative"])
    def test_links_within_hdf5_are_followed(self, path, member):
        assert np.array_equal(load_array(f"{path}::{member}"), X)

    def test_claims_of_hdf5_and_damaged_files_are_refused(self, path, tmp_path):
        refused(f"{path}::claim", "claim, of which not all was written")
        raw = (tmp_path / "other.h5").read_bytes()
        for content in (raw[: len(raw) // 2], raw[:8], b"", bytes(b ^ (k % 37 == 0) for k, b in enumerate(raw))):
            (tmp_path / "cut.h5").write_bytes(content)
            refused(tmp_path / "cut.h5::d", "X")

    def test_damaged_chunks_of_hdf5_are_named(self, tmp_path):
        with pytest.importorskip("h5py").File(tmp_path / "y.h5", "w") as file:
            data = file.create_dataset("d", data=np.arange(4000.0)[:, None], chunks=(1000, 1), compression="gzip")
            at = data.id.get_chunk_info(2).byte_offset
        raw = bytearray((tmp_path / "y.h5").read_bytes())
        raw[at : at + 100] = bytes(100)
        (tmp_path / "y.h5").write_bytes(raw)
        with pytest.raises(InputError, match=r"cannot read .*y\.h5::/?d"):
            dkrr.KernelRidge(kernel="linear").fit(f"{tmp_path}/y.h5::d", np.ones(4000))
