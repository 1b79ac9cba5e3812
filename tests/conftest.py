"""For every test: one thread (two pytest workers share two cores), and examples that are drawn alike each time."""

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("repeatable")
