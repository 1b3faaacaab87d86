"""Which images belong together: groups from a column, merged where two images are known to show the same lesion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class DisjointSets:
    """Union–find over strings. The representative of a set is its smallest member, whatever the order of unions."""

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}

    def find(self, item: str) -> str:
        """The representative of the set that holds ``item``."""
        root = item
        while (parent := self._parent.get(root, root)) != root:
            root = parent
        while item != root:  # path compression
            self._parent[item], item = root, self._parent[item]
        return root

    def union(self, first: str, second: str) -> bool:
        """Join two sets; whether they were apart."""
        low, high = sorted((self.find(first), self.find(second)))
        self._parent[high] = low
        return low != high


def merge_groups(groups: Mapping[str, str], pairs: Iterable[tuple[str, str]]) -> tuple[dict[str, str], int]:
    """Merge the groups of images that are duplicates of each other.

    Args:
        groups: the group of each image, by image id.
        pairs: ids of duplicate images; a pair with an id that ``groups`` does not know says nothing and is passed over.

    Returns:
        The merged groups, each named after the smallest name in it, and how many pairs joined groups that were apart.
    """
    sets = DisjointSets()
    joined = sum(sets.union(groups[a], groups[b]) for a, b in pairs if a in groups and b in groups)
    return {image: sets.find(group) for image, group in groups.items()}, joined
