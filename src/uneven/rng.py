"""Randomness keyed by purpose.

Every draw comes from a generator made for it alone, from the run's seed and what the draw is for, e.g.
``generator(seed, "cohort", t)`` or ``generator(seed, "train", t, client)``. So the order of work, and how
many workers share it, change nothing.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def subseed(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed for one purpose: SHA-256 over the run's seed and the parts of the purpose."""
    key = "\0".join(f"{type(part).__name__}:{part}" for part in (seed, *purpose))
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """A fresh CPU generator for one purpose."""
    return torch.Generator().manual_seed(subseed(seed, *purpose))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside, PyTorch's own generator (dropout, initial weights) starts from ``seed``; outside it is untouched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
