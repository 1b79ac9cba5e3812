"""uneven: federated learning on uneven devices and uneven data.

Every client trains the part of a PyTorch model that it can afford; the server puts the parts together.

>>> import uneven
>>> result = uneven.run(rounds=1, cohort=2, clients={"count": 10}, data={"train_limit": 200})
>>> result["method"]
'heterofl'
"""

from uneven.errors import UnevenError
from uneven.experiment import Experiment
from uneven.run import resume, run
from uneven.spec import Spec

__all__ = ["Experiment", "Spec", "UnevenError", "resume", "run"]
