from __future__ import annotations

from tdumpra.networks.settings import NetworkConfig


def test_the_folder_of_a_weights_file_is_no_part_of_a_network():
    here, there = (NetworkConfig(weights=f"{folder}w.pth").identity for folder in ("", "../elsewhere/"))
    assert here == there
    assert here != NetworkConfig(weights="other.pth").identity
    assert NetworkConfig(weights="lite").identity["weights"] == "lite"
