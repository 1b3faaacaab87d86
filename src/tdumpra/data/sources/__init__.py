"""Data sources: what a user has on disk, each kind in a file of its own, all as the same manifest."""

from tdumpra.data.sources.external import with_external_test as with_external_test
from tdumpra.data.sources.registry import SOURCE_KINDS as SOURCE_KINDS
from tdumpra.data.sources.registry import open_source as open_source
