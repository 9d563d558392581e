"""Containers of other libraries: what each is, how it is read, and the errors that say what to give instead."""

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from numpy.testing import assert_array_equal

import dkrr
from dkrr import KernelRidge
from dkrr.errors import InputError, InputTypeError
from dkrr.rows import MemoryRows, as_rows, load_array, load_labels, load_targets
from dkrr.rows.arrays import MappedRows, NpyRows
from dkrr.rows.zarr_arrays import OpenZarrRows
from dkrr.tiles.mapped import is_mapped
from tests.rows.sources import numbers, table


class TestMemoryMaps:
    def test_they_are_read_in_blocks(self, tmp_path):
        case = table("memory map", tmp_path)
        assert isinstance(as_rows(case.handed_in), MappedRows)
        assert isinstance(as_rows(f"{tmp_path}/map.npy"), NpyRows)
        assert not dkrr.plan(case.handed_in).problem.x_in_memory
        block = as_rows(case.handed_in).read(2, 5)
        assert type(block) is np.ndarray and not is_mapped(block)

    def test_what_is_in_memory(self, tmp_path):
        mapped = table("memory map", tmp_path).handed_in
        private = np.load(tmp_path / "map.npy", mmap_mode="c")
        private[0, 0] = 7.0
        for array in (mapped[np.arange(5)], private):
            assert isinstance(as_rows(array), MemoryRows)
        assert as_rows(private).read(0, 1)[0, 0] == 7.0

    @pytest.mark.parametrize("order", ["C", "F"])
    def test_a_file_in_either_order(self, tmp_path, order):
        np.save(tmp_path / "x.npy", np.asarray(numbers(), order=order))
        rows = as_rows(tmp_path / "x.npy")
        assert_array_equal(rows.read(3, 9, slice(1, 4)), numbers()[3:9, 1:4])
        assert rows.read(3, 9).flags.c_contiguous and (rows.read_overhead_bytes > 0) == (order == "F")


class TestZarr:
    def test_a_store_of_obstore_is_shared_unless_it_is_in_memory(self, tmp_path):
        obstore = pytest.importorskip("obstore.store")
        rows = as_rows(table("obstore", tmp_path).handed_in)
        assert isinstance(rows, OpenZarrRows) and not dkrr.plan(rows).problem.x_in_memory
        store = zarr.storage.ObjectStore(obstore.MemoryStore())
        array = zarr.create_array(store, name="x", data=numbers())
        assert isinstance(as_rows(array), MemoryRows)

    def test_a_zip_file_is_read_by_this_process(self, tmp_path):
        with zarr.storage.ZipStore(tmp_path / "x.zip", mode="w") as store:
            zarr.create_array(store, name="x", data=numbers())
        with zarr.storage.ZipStore(tmp_path / "x.zip", mode="r") as store:
            rows = as_rows(zarr.open_array(store, path="x", mode="r"))
            assert not rows.is_shared and not rows.is_in_memory
            assert_array_equal(rows.read(3, 9), numbers()[3:9])

    def test_a_group_names_its_arrays(self, tmp_path):
        group = zarr.create_group(tmp_path / "g.zarr")
        with pytest.raises(InputTypeError, match="X is a Zarr group; expected an array, of which the group has none"):
            as_rows(group)
        group.create_array("x", shape=(2, 2), dtype="f8")
        group.create_array("more/y", shape=(2,), dtype="f8")
        for call in (as_rows, lambda X: KernelRidge().fit(X, [1, 2]), dkrr.plan, dkrr.gram):
            with pytest.raises(InputTypeError, match=r"X is a Zarr group; .* such as group\['more/y'\], group\['x'\]"):
                call(group)
        with pytest.raises(InputTypeError, match="y is a Zarr group"):
            KernelRidge().fit(np.ones((2, 1)), group)
        with pytest.raises(InputError, match=r"the array itself, such as .*/g\.zarr/more/y, .*/g\.zarr/x$"):
            as_rows(f"{tmp_path}/g.zarr")


class TestHdf5:
    @pytest.fixture
    def path(self, tmp_path):
        h5py = pytest.importorskip("h5py")
        with h5py.File(tmp_path / "x.h5", "w") as file:
            file["x"], file["a/y"], file["text"] = numbers(), numbers()[:, 0], np.array([b"late", b"early"])
            file["records"] = np.zeros(3, [("a", float), ("b", int)])
        return f"{tmp_path}/x.h5"

    def test_targets_and_open_data_sets(self, path, monkeypatch):
        import h5py

        assert_array_equal(load_array(f"{path}::a/y"), numbers()[:, 0])
        with h5py.File(path, "r") as file:
            assert_array_equal(as_rows(file["x"]).take(np.array([5, 2, 5])), numbers()[[5, 2, 5]])
            model = KernelRidge(0.1).fit(file["x"], file["a/y"])
            assert not model.plan_.problem.x_in_memory
            assert_array_equal(load_labels(file["text"]), [b"late", b"early"])
        monkeypatch.setattr("dkrr.rows.open.HELD_BYTES", 10)
        targets = load_targets(f"{path}::x")
        assert is_mapped(targets) and np.array_equal(targets, numbers())

    @pytest.mark.parametrize(
        ("member", "match"),
        [
            ("", r"no data set ''; expected one of x\.h5::a/y, x\.h5::records, x\.h5::text, x\.h5::x"),
            ("::b", "no data set 'b'"),
            ("::a", "no data set 'a'"),
            ("::records", "has records .* expected a matrix of numbers"),
            ("::text", "X has dtype .*expected numbers"),
        ],
    )
    def test_refused(self, path, member, match):
        with pytest.raises(InputError, match=match):
            as_rows(path + member)

    def test_damaged(self, tmp_path):
        pytest.importorskip("h5py")
        (tmp_path / "x.h5").write_bytes(b"nothing")
        with pytest.raises(InputError, match="X: cannot read"):
            as_rows(f"{tmp_path}/x.h5::x")


class TestXarray:
    @pytest.fixture
    def xarray(self):
        return pytest.importorskip("xarray")

    def test_arrays_stay_where_they_are(self, xarray, tmp_path):
        y = xarray.DataArray(numbers()[:, 3] + 1)
        lazy = xarray.DataArray(numbers()).chunk(5)
        model = KernelRidge(0.1).fit(lazy, y)
        assert not model.plan_.problem.x_in_memory and isinstance(model.predict(lazy), da.Array)
        dataset = xarray.Dataset({"x": xarray.DataArray(numbers(), dims=("r", "c"))})
        dataset.to_netcdf(tmp_path / "x.nc", engine="scipy")
        with xarray.open_dataset(tmp_path / "x.nc", engine="scipy") as opened:
            model = KernelRidge(0.1).fit(opened["x"], y.chunk(7))
            assert not model.plan_.problem.x_in_memory and not opened["x"].variable._in_memory
        model = KernelRidge(0.1).fit(xarray.DataArray(numbers()), y)
        assert model.plan_.problem.x_in_memory

    def test_what_to_give_instead_of_a_dataset(self, xarray):
        X = numbers()
        dataset = xarray.Dataset({"a": ("row", X[:, 0]), "b": ("row", X[:, 2]), "y": ("row", X[:, 3] + 1)})
        expected = KernelRidge(0.1).fit(X[:, [0, 2]], X[:, 3] + 1).predict(X[:, [0, 2]])
        columns = dataset[["a", "b"]].to_dataarray().T
        for given in (columns, columns.chunk({"row": 5}), dataset[["a", "b"]].to_dataframe()):
            np.testing.assert_allclose(KernelRidge(0.1).fit(given, dataset["y"]).predict(given), expected, atol=1e-10)
        for rows, y in ((dataset, "y"), (X, dataset)):
            with pytest.raises(InputTypeError, match=r"[Xy] is a Dataset of xarray; expected .*to_dataarray\(\)\.T"):
                KernelRidge(0.1).fit(rows, y)
        with pytest.raises(InputTypeError, match="path is a Dataset of xarray"):
            dkrr.open_table(dataset)

    @pytest.mark.parametrize("member", ["", "::x"])
    def test_netcdf_files_are_refused(self, tmp_path, member):
        (tmp_path / "x.nc").write_bytes(b"CDF")
        message = (
            r"X: .*x\.nc is a netCDF file; expected .*xarray\.open_dataset\('.*x\.nc', chunks=\{\}\)\['variable'\]"
        )
        with pytest.raises(InputError, match=message):
            as_rows(f"{tmp_path}/x.nc{member}")
        with pytest.raises(InputError, match=message):
            KernelRidge(0.1).fit(f"{tmp_path}/x.nc{member}", "y")


def test_partitions_of_a_dask_frame_are_counted_by_one_column():
    dd, pd = pytest.importorskip("dask.dataframe"), pytest.importorskip("pandas")
    read = []

    def part(number, columns=None):
        read.append(columns)
        table = pd.DataFrame(numbers(seed=number)[:, :3], columns=["a", "b", "c"])
        return table if columns is None else table[columns]

    frame = dd.from_map(part, [0, 1])
    frame = frame[frame["a"] != 0]
    read.clear()
    with dask.config.set(scheduler="synchronous"):
        rows = as_rows(frame)
        assert read and all(columns == ["a"] for columns in read)
        kept = np.vstack([numbers(seed=k)[numbers(seed=k)[:, 0] != 0][:, :3] for k in (0, 1)])
        assert rows.shape == kept.shape
        assert_array_equal(rows.read(0, len(kept)), kept)
