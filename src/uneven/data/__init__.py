"""Data: where it comes from, and how the clients share it."""

from uneven.data.federation import ClientData, Examples, Federation, Info
from uneven.data.loading import load
from uneven.data.options import DataOptions
from uneven.data.rows import from_tensors, from_texts

__all__ = ["ClientData", "DataOptions", "Examples", "Federation", "Info", "from_tensors", "from_texts", "load"]
