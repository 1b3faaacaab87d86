import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tdumpra.data.images.framing import Framing
from tdumpra.data.images.store import CachedImages
from tdumpra.errors import ArtifactError

FRAMING = Framing(height=8, width=9)
HELPERS = Path(__file__).parents[2] / "helpers"


@pytest.fixture
def cached(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (6, 8, 9, 3), dtype=np.uint8)
    (tmp_path / "pixels.u8").write_bytes(pixels.tobytes())
    rows = np.array([5, 0, 3])
    return CachedImages(tmp_path / "pixels.u8", rows, FRAMING), pixels[rows]


def test_images_come_in_the_order_that_was_asked_for(cached):
    store, pixels = cached
    np.testing.assert_array_equal(store.read(np.array([2, 0, 0, 1])), pixels[[2, 0, 0, 1]])
    assert store.read(np.array([], dtype=np.int64)).shape == (0, 8, 9, 3)
    assert len(store) == 3
    assert store.nbytes == 3 * 216


def test_images_are_copies_of_ones_own(cached):
    store, pixels = cached
    first = store.read(np.array([0, 1]))
    second = store.read(np.array([2, 1]))
    first[:] = 0
    np.testing.assert_array_equal(second, pixels[[2, 1]])


def test_a_store_goes_to_other_processes(cached):
    store, pixels = cached
    store.read(np.array([0]))
    again = pickle.loads(pickle.dumps(store))
    np.testing.assert_array_equal(again.read(np.array([1])), pixels[[1]])


def test_a_file_that_was_cut_or_is_gone_is_refused(cached):
    store, _ = cached
    data = store.path.read_bytes()
    store.path.write_bytes(data[:-1])
    with pytest.raises(ArtifactError, match="ends before one of its images; prepare it again"):
        store.read(np.array([1, 0]))
    assert store.read(np.array([1, 2])).shape == (2, 8, 9, 3)  # others are whole
    store.path.unlink()
    with pytest.raises(ArtifactError, match=r"cannot read the image cache .*prepare it again"):
        store.read(np.array([1]))


CHILD = """
import sys
from dataclasses import replace
from pathlib import Path
import numpy as np
from tiny_runs import colours, settings, train_run
from tdumpra.data.images.framing import Framing
from tdumpra.data.images.store import CachedImages

side, folder = 512, Path(sys.argv[1])
framing = Framing(height=side, width=side)
config = settings(epochs=1, batch_size=8)
config = replace(config, data=replace(config.data, framing=framing))

def most(field):
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024

def trained(n, name=""):
    path = folder / f"{n}.u8"
    with path.open("wb") as file:
        file.truncate(n * framing.nbytes)
    data = colours(n)
    images = CachedImages(path, np.arange(n), framing)
    data = replace(data, prepared=replace(data.prepared, images=images))
    train_run(config, folder / f"{n}{name}", data)
    return images.nbytes / 2**20, most("VmHWM")

trained(300)  # batches of full size
small, before = trained(300, "again")  # what the first one left has found its place
large, after = trained(1200)
print(large - small, after - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the most memory that a process held is told by Linux")
def test_the_memory_of_training_does_not_grow_with_the_cache(tmp_path):
    child = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(HELPERS)!r})\n{CHILD}", str(tmp_path)]
    done = subprocess.run(child, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    cache, memory = map(float, done.stdout.split()[-2:])
    assert cache > 600  # MiB
    assert memory < 0.05 * cache
