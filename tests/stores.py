"""Places for arrays of tests, and stores changed by someone who knows the format: checksums included."""

from dkrr.store import ChunkedArray, TiledMatrix
from dkrr.store.format import read_group, write_group
from dkrr.store.places import place_at


def place(path):
    """A place outside of any run."""
    return place_at(str(path), "test")


def tiled(url, grid, dtype="float64"):
    """An empty matrix in tiles, outside of any run."""
    here = place(url)
    array = ChunkedArray.create(here.url, (grid.n, grid.n), (grid.tile, grid.panel), dtype, here.identity)
    return TiledMatrix((array,), grid)


def edit(path, **changes):
    """Change the description of a run or model, which then matches its checksum."""
    write_group(str(path), {**read_group(str(path)), **changes})


def put(array, at, value):
    """Change a number of an array that dkrr wrote, whose checksums then match."""
    numbers = array.load()
    numbers[at] = value
    array.fill(numbers)


def flip(path, at):
    """Change a bit of a file: that of one of its bytes, counted around."""
    raw = bytearray(path.read_bytes())
    raw[at % len(raw)] ^= 4
    path.write_bytes(bytes(raw))
