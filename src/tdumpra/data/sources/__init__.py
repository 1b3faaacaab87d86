"""Data sources: each kind of data set on disk in a module of its own, all read into the same manifest."""

from tdumpra.data.sources.external import with_external_test as with_external_test
from tdumpra.data.sources.registry import SOURCE_KINDS as SOURCE_KINDS
from tdumpra.data.sources.registry import open_source as open_source
