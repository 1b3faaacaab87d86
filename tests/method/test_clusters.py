import resource
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tdumpra.core import rowwise
from tdumpra.core.kmeans import lloyd
from tdumpra.method import clusters
from tdumpra.method.bank import PrototypeBank
from tdumpra.method.clusters import Directions

pytestmark = pytest.mark.filterwarnings("ignore:some classes have many training rows")


def modes(n, width=8, n_modes=6, n_classes=2, seed=0):
    """Rows around some directions of each class, in no order, of any length."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, n_classes, n)
    centre = rng.normal(size=(n_classes, n_modes, width))[y, rng.integers(0, n_modes, n)]
    z = (centre + 0.3 * rng.normal(size=(n, width))) * rng.uniform(0.5, 20, (n, 1))
    return z.astype(np.float32), y


def objective(bank, z, y):
    """The sum of 1 - cosine to the nearest prototype of a row's own class."""
    unit = rowwise.normalise(torch.from_numpy(z))
    cosines = torch.einsum("nd,nkd->nk", unit, bank.prototypes[y])
    return float((1 - cosines.masked_fill(~bank.mask[y], -2).amax(1)).double().sum())


class TestLargeClasses:
    def test_passes_over_all_rows_are_lloyds_iterations(self, monkeypatch):
        z, y = modes(5_000)
        monkeypatch.setattr(clusters, "CLUSTERED_ROWS", 300)
        monkeypatch.setattr(clusters, "SETTLED", -np.inf)  # all passes, whatever they gain
        monkeypatch.setattr(clusters, "MOST_PASSES", 1)
        start = PrototypeBank.fit(z, y, 6, merge_above=None)  # one pass gives rows away and moves nothing
        monkeypatch.setattr(clusters, "MOST_PASSES", 5)
        found = PrototypeBank.fit(z, y, 6, merge_above=None)
        for c in range(2):
            unit = rowwise.normalise(torch.from_numpy(z[y == c]))
            expected = lloyd(unit, start.prototypes[c], torch.ones(len(unit)), max_iter=4).centers
            order = [int((expected @ each).argmax()) for each in found.prototypes[c]]
            assert sorted(order) == list(range(6))
            torch.testing.assert_close(found.prototypes[c], expected[order], rtol=0, atol=1e-5)

    def test_all_rows_are_clustered_better_than_a_part_of_them_alone(self, monkeypatch):
        z, y = modes(20_000, width=16, n_modes=10)
        whole = PrototypeBank.fit(z, y, 10, merge_above=None)
        monkeypatch.setattr(clusters, "CLUSTERED_ROWS", 100)
        streamed = PrototypeBank.fit(z, y, 10, merge_above=None)
        monkeypatch.setattr(clusters, "MOST_PASSES", 1)
        of_a_part = PrototypeBank.fit(z, y, 10, merge_above=None)
        assert objective(streamed, z, y) < 0.99 * objective(of_a_part, z, y)
        assert objective(streamed, z, y) < 1.1 * objective(whole, z, y)

    @pytest.mark.parametrize("weighted", [False, True])
    def test_blocks_of_any_size_give_the_same_bank(self, monkeypatch, weighted):
        z, y = modes(3_000, n_classes=3)
        weights = np.random.default_rng(0).uniform(0.5, 2, len(y)) if weighted else None
        monkeypatch.setattr(clusters, "CLUSTERED_ROWS", 400)
        one = PrototypeBank.fit(z, y, 4, weights=weights)
        for module in (clusters, rowwise):
            monkeypatch.setattr(module, "BLOCK", 77)
        other = PrototypeBank.fit(z, y, 4, weights=weights)
        for name in ("prototypes", "weight", "cohesion", "reference"):
            torch.testing.assert_close(getattr(other, name), getattr(one, name), rtol=0, atol=1e-5)

    def test_a_class_of_small_size_is_clustered_as_ever_beside_large_ones(self, monkeypatch):
        z, y = modes(4_000, n_classes=2)
        z, y = np.concatenate([z, modes(90, seed=5)[0]]), np.concatenate([y, np.full(90, 2)])
        exact = PrototypeBank.fit(z, y, 4)
        monkeypatch.setattr(clusters, "CLUSTERED_ROWS", 400)
        streamed = PrototypeBank.fit(z, y, 4)
        torch.testing.assert_close(streamed.prototypes[2], exact.prototypes[2])
        assert [[e.id for e in k] for k in streamed.exemplars[2]] == [[e.id for e in k] for k in exact.exemplars[2]]

    def test_the_nearest_rows_of_all_are_exemplars(self, monkeypatch):
        z, y = modes(6_000)
        monkeypatch.setattr(clusters, "CLUSTERED_ROWS", 200)
        bank = PrototypeBank.fit(z, y, 3)
        unit = rowwise.normalise(torch.from_numpy(z))
        cosine = (unit @ bank.prototypes[0, 0]).masked_fill(torch.from_numpy(y != 0), -2)
        assert bank.exemplars[0][0][0].id == str(int(cosine.argmax()))
        top = torch.einsum("nd,ckd->nck", unit, bank.prototypes).amax((1, 2))
        assert bank.reference[0].item() == pytest.approx(float(top.min()), abs=1e-6)


def test_a_centre_that_lost_all_its_rows_is_left_out():
    rows, centers = torch.arange(4), torch.eye(3)
    whole = clusters.Clusters(rows, None, centers, rows, 0)
    found = clusters._with_rows(whole, centers, torch.tensor([0, 2, 2, 0]))
    assert torch.equal(found.centers, centers[[0, 2]])
    assert found.assignment.tolist() == [0, 1, 1, 0]


class TestDirections:
    def test_rows_of_extreme_length_have_a_direction_too(self, monkeypatch):
        rows = torch.tensor([[3e-30, 4e-30], [3e30, 4e30], [3.0, 4.0]])
        monkeypatch.setattr(clusters, "BLOCK", 2)
        torch.testing.assert_close(Directions(rows)[0:3], torch.tensor([[0.6, 0.8]] * 3))

    def test_blocks_are_smaller_where_more_is_made_of_a_row(self, monkeypatch):
        monkeypatch.setattr(rowwise, "_ENTRIES", 1000)
        found = [rows for rows, _ in Directions(torch.ones(100, 4)).blocks(100)]
        assert [rows.stop - rows.start for rows in found] == [10] * 10


CHILD = """
import resource, sys
import numpy as np
from tdumpra import PrototypeBank
from tdumpra.method import clusters
clusters.CLUSTERED_ROWS = 2000
z = np.load(sys.argv[1], mmap_mode="r")
y = np.arange(len(z)) % 4
PrototypeBank.fit(np.array(z[:2000]), y[:2000], 5)  # what libraries take once
used = int(next(line for line in open("/proc/self/status") if line.startswith("VmData")).split()[1]) * 1024
limit = used + z.nbytes // 2
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
bank = PrototypeBank.fit(z, y, 5)
print(int(bank.mask.sum()))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits what a process allocates beside mapped files")
def test_a_mapped_file_is_never_held_in_memory(tmp_path):
    path = tmp_path / "z.npy"
    z = np.lib.format.open_memmap(path, "w+", np.float32, (1_000_000, 128))  # 512 MB
    rng = np.random.default_rng(0)
    for start in range(0, len(z), 100_000):
        z[start : start + 100_000] = rng.random((100_000, 128), dtype=np.float32) - 0.4
    del z
    child = [sys.executable, "-W", "ignore", "-c", CHILD, str(path)]
    done = subprocess.run(child, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "20\n"
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY  # the child's limit was its own


def test_rows_of_a_safetensors_file_are_taken_as_they_are(tmp_path):
    z, y = modes(500)
    save_file({"z": torch.from_numpy(z)}, tmp_path / "z.safetensors")
    with safe_open(tmp_path / "z.safetensors", framework="pt") as file:
        found = PrototypeBank.fit(file.get_tensor("z"), y, 3)
        part = PrototypeBank.fit(file.get_slice("z")[:300], y[:300], 3)
    torch.testing.assert_close(found.prototypes, PrototypeBank.fit(z, y, 3).prototypes)
    torch.testing.assert_close(part.prototypes, PrototypeBank.fit(z[:300], y[:300], 3).prototypes)
