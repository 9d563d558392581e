"""What is at a path is what was there before, or whole."""

from pathlib import Path

import fsspec
import pytest

from dkrr.errors import InputError
from dkrr.tiles.aside import check_free, written_aside


def write(place, text, *, folder):
    if folder:
        Path(place).mkdir()
        (Path(place) / "content").write_text(text)
    else:
        Path(place).write_text(text)


def content(path, *, folder):
    return (path / "content" if folder else path).read_text()


@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize("there", [False, True])
def test_takes_the_place_once_whole(tmp_path, folder, there):
    path = tmp_path / "new" / "a.npy"
    if there:
        path.parent.mkdir()
        write(path, "old", folder=folder)
    with written_aside(str(path), overwrite=there) as place:
        assert place.endswith("a.npy") and Path(place).parent == path.parent
        write(place, "new", folder=folder)
        assert content(path, folder=folder) == "old" if there else not path.exists()
    assert content(path, folder=folder) == "new" and [p.name for p in path.parent.iterdir()] == ["a.npy"]


@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_what_was_there(tmp_path, folder, error):
    path = tmp_path / "a"
    write(path, "old", folder=folder)

    def fail():
        with written_aside(str(path), overwrite=True) as place:
            write(place, "half", folder=folder)
            raise error

    with pytest.raises(error):
        fail()
    assert content(path, folder=folder) == "old" and [p.name for p in tmp_path.iterdir()] == ["a"]


def test_what_comes_to_exist_meanwhile_stays(tmp_path):
    path = tmp_path / "a"

    def race():
        with written_aside(str(path), overwrite=False) as place:
            write(place, "mine", folder=False)
            write(path, "theirs", folder=False)

    with pytest.raises(InputError, match="in the meantime"):
        race()
    assert path.read_text() == "theirs" and [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_link_stays_a_link(tmp_path):
    write(tmp_path / "target", "old", folder=False)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with written_aside(str(tmp_path / "link"), overwrite=True) as place:
        write(place, "new", folder=False)
    assert (tmp_path / "link").is_symlink() and (tmp_path / "target").read_text() == "new"


def test_a_clean_up_that_fails_does_not_hide_the_error(tmp_path, monkeypatch):
    def fail_and_forbid():
        with written_aside(str(tmp_path / "a"), overwrite=False) as place:
            write(place, "half", folder=False)
            monkeypatch.setattr(Path, "unlink", lambda *_, **__: (_ for _ in ()).throw(PermissionError("no")))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_and_forbid()


def test_an_old_folder_that_cannot_come_back_is_named(tmp_path, monkeypatch):
    path = tmp_path / "a"
    write(path, "old", folder=True)
    rename, calls = Path.rename, []

    def once(self, target):
        calls.append(target)
        if len(calls) > 1:
            raise PermissionError(f"call {len(calls)}")
        return rename(self, target)

    def replace():
        with written_aside(str(path), overwrite=True) as place:
            write(place, "new", folder=True)
            monkeypatch.setattr(Path, "rename", once)

    with pytest.raises(PermissionError, match="call 2") as caught:
        replace()
    (kept,) = tmp_path.iterdir()
    assert content(kept, folder=True) == "old" and str(kept) in caught.value.__notes__[0]


def test_a_store_that_cannot_be_moved_stays_whole(monkeypatch):
    system = fsspec.filesystem("memory")
    system.pipe("/moving/a.zarr/c/0", b"old")

    def fail(*_, **__):
        raise TimeoutError

    def replace():
        with written_aside("memory://moving/a.zarr", overwrite=True) as place:
            system.pipe(f"{place.removeprefix('memory://')}/c/0", b"new")
            monkeypatch.setattr(type(system), "mv", fail)

    with pytest.raises(TimeoutError) as caught:
        replace()
    (kept,) = system.ls("/moving", detail=False)
    assert system.cat(f"{kept}/c/0") == b"new" and kept in caught.value.__notes__[0]


def test_object_store():
    system = fsspec.filesystem("memory")
    for text in ("old", "new"):
        with written_aside("memory://aside/a.zarr", overwrite=True) as place:
            system.pipe(f"{place.removeprefix('memory://')}/c/0", text.encode())
        assert system.cat("/aside/a.zarr/c/0") == text.encode()
        assert system.ls("/aside", detail=False) == ["/aside/a.zarr"]
    with pytest.raises(InputError, match="exists already"):
        check_free("memory://aside/a.zarr", overwrite=False, what="a", is_one=bool)


def test_only_its_own_kind_is_overwritten(tmp_path):
    path = tmp_path / "a"
    check_free(str(path), overwrite=False, what="a model", is_one=lambda url: False)
    path.mkdir()
    check_free(str(path), overwrite=True, what="a model", is_one=lambda url: False)  # empty
    with pytest.raises(InputError, match="exists already"):
        check_free(str(path), overwrite=False, what="a model", is_one=lambda url: True)
    (path / "thesis.tex").touch()
    with pytest.raises(InputError, match="is not a model"):
        check_free(str(path), overwrite=True, what="a model", is_one=lambda url: False)
    check_free(str(path), overwrite=True, what="a model", is_one=lambda url: True)
