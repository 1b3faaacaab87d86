"""Merge the groups of images that show the same lesion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def merge_groups(groups: Mapping[str, str], pairs: Iterable[tuple[str, str]]) -> tuple[dict[str, str], int]:
    """Merge the groups of images that are duplicates of each other.

    Args:
        groups: the group of each image, by image id.
        pairs: ids of duplicate images; a pair with an unknown id is skipped.

    Returns:
        The merged groups, each named after the smallest name in it, and how many pairs joined groups that were apart.
    """
    parent: dict[str, str] = {}  # union-find: a group that was merged into another points to it

    def find(group: str) -> str:
        while (above := parent.get(group, group)) != group:
            parent[group] = parent.get(above, above)  # halves the path for the next search
            group = above
        return group

    joined = 0
    for first, second in pairs:
        if first in groups and second in groups:
            low, high = sorted((find(groups[first]), find(groups[second])))
            if low != high:
                parent[high] = low
                joined += 1
    return {image: find(group) for image, group in groups.items()}, joined
