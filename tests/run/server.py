"""Runs the command ``uneven`` in one fresh process after another, without paying for its imports each time.

The server imports all of it once and forks. A child is a process of its own: it can be killed, has its own
folder, files and limits, and its exit code is the command's. Requests and answers are lines of JSON.
"""

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any


def serve() -> None:
    """Answer requests until the input ends: first a child's process id, then how it ended."""
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _child(request)
        print(json.dumps(pid), flush=True)
        print(json.dumps(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])), flush=True)


def _child(request: dict[str, Any]) -> None:
    code: Any = 1
    try:
        for fd, path, flags in (
            (0, os.devnull, os.O_RDONLY),
            (1, request["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
            (2, request["err"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        ):
            os.dup2(os.open(path, flags), fd)
        os.chdir(request["cwd"])
        sys.argv = ["uneven", *request["argv"]]
        exec(request["before"], dict(vars(faults)))
        cli.main()
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


if __name__ == "__main__":
    import flwr_datasets  # noqa: F401
    import torch

    from uneven import cli
    from uneven.data import Info, table  # noqa: F401
    from uneven.models import build
    from uneven.submodels import Supernet

    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.run import faults

    sys.path.pop(0)
    torch.set_num_threads(1)
    for options in ({}, {"norm": "batch"}):  # what is slow the first time
        Supernet(build("cnn", Info((1, 8, 8), 2, ("a", "b")), options, 0), torch.zeros(1, 8, 8))
    serve()
