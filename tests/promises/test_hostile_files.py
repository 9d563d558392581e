"""Files of rows and targets from elsewhere: none is waited for, none takes what it only claims or leads elsewhere."""

import os
import resource
import socket
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

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
    "one row more than there is": (npy((4, 2)), "its header says"),
    "more than a number of 64 bits": (npy((2**62, 2**62)), "its header says"),
    "negative": (npy((-3, 2)), r"shape \(-3, 2\); expected whole numbers"),
    "a flag": (npy((True, 2)), "expected whole numbers"),
    "many dimensions": (npy((1,) * 70), "dimension"),
    "pickle": (npy((3, 2), "|O"), "only pickle would read"),
    "values of no size": (npy((10**17,), "<U0"), "expected numbers or text"),
    "another magic": (b"PICKLED" + bytes(100), "not in NumPy's format"),
    "empty": (b"", "not in NumPy's format"),
    "cut off": (npy((3, 2))[:20], "cannot read"),
    "a later version": (b"\x93NUMPY\x09\x00" + bytes(50), "not in NumPy's format"),
    "a header of 4 GiB": (b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(50), "its header has 4,294,967,295 bytes"),
    "a long header": (b"\x93NUMPY\x02\x00" + struct.pack("<I", 20000) + b" " * 20000, "its header has 20,000 bytes"),
    "a deep header": (b"\x93NUMPY\x01\x00" + struct.pack("<H", 9000) + b"-" * 9000, "cannot be read"),
    "another header": (b"\x93NUMPY\x01\x00" + struct.pack("<H", 4) + b"eval", "cannot read"),
    "another type": (npy((3, 2), "evil"), "not a valid dtype"),
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

    @pytest.mark.parametrize("version", [1, 2, 3])
    def test_what_numpy_writes_is_read(self, tmp_path, version):
        (tmp_path / "link.npz").symlink_to("x.npz")
        for order, save in (("C", np.savez), ("F", np.savez_compressed)):
            with (tmp_path / "x.npy").open("wb") as file:
                np.lib.format.write_array(file, np.asarray(X, order=order), version=(version, 0))
            save(tmp_path / "x.npz", a=np.asarray(X, order=order))
            for path in ("x.npy", "x.npz::a", "link.npz::a"):
                assert np.array_equal(load_array(f"{tmp_path}/{path}"), X)

    @pytest.mark.parametrize(
        ("at", "value"),
        [
            (24, struct.pack("<I", 4 * 10**9)),  # size
            (20, struct.pack("<II", 4 * 10**9, 4 * 10**9)),  # compressed size, and size
            *((10, struct.pack("<H", method)) for method in (99, zipfile.ZIP_LZMA)),
            (8, struct.pack("<H", 1)),  # encrypted
        ],
    )
    def test_damaged_directories_of_npz_are_refused(self, tmp_path, at, value):
        np.savez_compressed(tmp_path / "x.npz", a=X)
        raw = bytearray((tmp_path / "x.npz").read_bytes())
        begin = raw.index(b"PK\x01\x02") + at
        raw[begin : begin + len(value)] = value
        (tmp_path / "x.npz").write_bytes(raw)
        refused(f"{tmp_path}/x.npz::a", "not as NumPy writes it")

    @pytest.mark.parametrize(
        ("names", "match"),
        [
            (["a", "a"], "two arrays of one name"),
            (range(2**16), "65,536 arrays"),
            (range(100), r"no array 'a'; expected one of 0, 1, .*, 7, \.\.\.: write"),
        ],
        ids=["twice", "many", "none"],
    )
    @pytest.mark.filterwarnings("ignore:Duplicate name")
    def test_claims_of_members_of_npz_are_refused(self, tmp_path, names, match):
        with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
            for name in names:
                archive.writestr(f"{name}.npy", npy((3, 2)) if name == "a" else b"")
        refused(f"{tmp_path}/x.npz::a", match, READERS if len(names) <= 100 else [as_rows])

    def test_what_does_not_fit_in_memory(self, tmp_path, monkeypatch):
        np.savez_compressed(tmp_path / "x.npz", a=np.zeros(10**6))
        zarr.create_array(f"{tmp_path}/y.zarr", shape=(10**13,), chunks=(1000,), dtype="f8")
        refused(tmp_path / "y.zarr", "X takes 72.8 TiB of memory", [load_labels])
        monkeypatch.setattr("dkrr.data.files.available_bytes", lambda: 10**6)
        refused(f"{tmp_path}/x.npz::a", "x.npz::a takes 7.63 MiB of memory, and 977 KiB are available")

    @pytest.mark.parametrize("layout", ["coo", "csc", "dia", "bsr", "csr"])
    @pytest.mark.parametrize("shape", [[10**13, 3], [-1, 3], [2**62, 2**62], [3], "x"])
    def test_sparse_rows_that_claim_more_are_refused(self, tmp_path, layout, shape):
        one, zero = np.ones((1,) * {"dia": 2, "bsr": 3}.get(layout, 1)), np.array([0])
        parts = {"row": zero, "col": zero, "offsets": zero, "indices": zero, "indptr": np.array([0, 1, 1, 1])}
        np.savez(tmp_path / "x.npz", format=layout.encode(), shape=np.array(shape), data=one, **parts)
        refused(tmp_path / "x.npz", "X", [as_rows])

    def test_parts_of_sparse_rows_must_fit_together(self, tmp_path):
        for parts in ({"data": np.ones(1)}, {"format": b"evil"}, {"format": np.array([1, 2])}, {"format": b"lil"}):
            np.savez(tmp_path / "x.npz", **({"format": b"csr", "shape": np.array([1, 3])} | parts))
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

    @pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.arrow", "year=1/a.parquet"])
    def test_other_things_in_folders_are_not_opened(self, tmp_path, name):
        (tmp_path / "table" / name).parent.mkdir(parents=True)
        os.mkfifo(tmp_path / "table" / name)
        refused(tmp_path / "table", "is a pipe")
        if "/" not in name:
            refused(tmp_path / "table" / f"*.{name[2:]}", "no files of a table")

    @pytest.mark.parametrize("name", ["zarr.json", ".zarray", "member/zarr.json"])
    def test_other_things_in_zarr_are_not_opened(self, tmp_path, name):
        if "/" in name:
            zarr.create_group(f"{tmp_path}/x.zarr")
        (tmp_path / "x.zarr" / name).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(tmp_path / "x.zarr" / name)
        refused(tmp_path / "x.zarr", "is a pipe")

    def test_every_way_in_refuses_what_is_not_a_file(self, tmp_path):
        """Pipes as X, targets and weights, of the library and of the command."""
        np.save(tmp_path / "x.npy", X)
        os.mkfifo(tmp_path / "pipe.npy")
        for name in ("X", "y", "sample_weight"):
            with pytest.raises(InputError, match="is a pipe"):
                dkrr.KernelRidge().fit(**dict.fromkeys(("X", "y"), tmp_path / "x.npy") | {name: tmp_path / "pipe.npy"})
        command = [sys.executable, "-c", "from dkrr.cli import main; main()", "fit", "--x", "pipe.npy"]
        command += ["--y", "x.npy", "--model", "m"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and "is a pipe" in done.stderr


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
            for name, target in {"self": "/self", "a": "/b", "b": "/a", "grows": "/grows/grows"}.items():
                file[name] = h5py.SoftLink(target)
            file["soft"], file["relative"] = h5py.SoftLink("g/itself/d"), h5py.SoftLink("./g/d")
            file["nowhere"] = h5py.SoftLink("gone")
            file["external"], file["file"] = h5py.ExternalLink("other.h5", "d"), h5py.ExternalLink("other.h5", "/")
            file["to external"] = h5py.SoftLink("/file/d")
            file.create_dataset("stored elsewhere", X.shape, "f8", external=[("secret.bin", 0, X.nbytes)])
            layout = h5py.VirtualLayout(X.shape, "f8")
            layout[:] = h5py.VirtualSource("other.h5", "d", X.shape)
            file.create_virtual_dataset("virtual", layout)
            file["none"], file["type"] = h5py.Empty("f8"), np.dtype("f8")
            file.create_dataset("claim", (10**13,), "f8", chunks=(1000,))
        return tmp_path / "x.h5"

    @pytest.mark.parametrize(
        ("member", "match"),
        [
            *((name, "leads in a circle") for name in ("self", "a", "grows")),
            ("external", "external link to 'other.h5'; open that file itself"),
            *((name, "external link to 'other.h5'") for name in ("file/d", "to external")),
            *((name, "in other files") for name in ("stored elsewhere", "virtual")),
            ("none", "without numbers"),
            ("nowhere", "no data set 'nowhere'; expected one of x.h5::claim, x.h5::g/d, x.h5::none"),
            *((name, f"no data set '{name}'") for name in ("type", "g", "g/d/d", "")),
            ("../x", "no data set"),
            ("a\x1b[31m", r"no data set 'a\\x1b\[31m'"),
        ],
    )
    def test_links_out_of_hdf5_are_refused(self, path, member, match):
        refused(f"{path}::{member}", match)

    @pytest.mark.parametrize("member", ["g/d", "/g/d", "g/itself/itself/d", "g/root/g/d", "soft", "relative"])
    def test_links_within_hdf5_are_followed(self, path, member):
        assert np.array_equal(load_array(f"{path}::{member}"), X)

    def test_claims_of_hdf5_are_refused(self, path):
        assert as_rows(f"{path}::claim").shape == (10**13, 1), "read in blocks"
        refused(f"{path}::claim", "72.8 TiB of memory", [load_labels])

    def test_damaged_hdf5_files_are_refused(self, path, tmp_path):
        raw = (tmp_path / "other.h5").read_bytes()
        for content in (raw[: len(raw) // 2], raw[:8], b"", bytes(b ^ (k % 37 == 0) for k, b in enumerate(raw))):
            (tmp_path / "cut.h5").write_bytes(content)
            refused(tmp_path / "cut.h5::d", "X")

    def test_damaged_chunks_of_hdf5_are_named(self, tmp_path):
        h5py = pytest.importorskip("h5py")
        with h5py.File(tmp_path / "y.h5", "w") as file:
            data = file.create_dataset("d", data=np.arange(4000.0)[:, None], chunks=(1000, 1), compression="gzip")
            at = data.id.get_chunk_info(2).byte_offset
        with (tmp_path / "y.h5").open("r+b") as file:
            file.seek(at)
            file.write(bytes(100))
        with pytest.raises(InputError, match=r"cannot read .*y\.h5::/?d"):
            dkrr.KernelRidge(kernel="linear").fit(f"{tmp_path}/y.h5::d", np.ones(4000))
