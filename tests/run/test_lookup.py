"""Names: those that come with uneven, and the user's own by a dotted path."""

from pathlib import Path
from typing import Any

import pytest

from tests.run.helpers import lines, one_error, server, sets
from uneven.errors import MethodError, nearest
from uneven.lookup import find, unknown_options

OWN = '''\
from uneven.methods import Client, Failure, Method, MethodOptions

class FragileClient(Client):
    def train(self, assignment, data, memory):
        if assignment.client == self.options.broken:
            raise RuntimeError("battery empty")
        return super().train(assignment, data, memory)

class Fragile(Method):
    """A method of one's own."""

    class Options(MethodOptions):
        broken: int = 3
        """The client that fails [sometimes]."""

    Client = FragileClient

    def submodel(self, t, client):
        return self.supernet.prefix(client.width)

def net(info, width: int = 8):
    from torch import nn
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, info.num_classes))
'''


def test_known() -> None:
    assert find("a", {"a": 1}, "field", MethodError) == 1
    with pytest.raises(MethodError, match=r"field = 'fedagv': did you mean 'fedavg'\?"):
        find("fedagv", {"fedavg": 1, "fedprox": 2}, "field", MethodError)
    with pytest.raises(MethodError, match="known: a, b"):
        find("zzz", {"b": 1, "a": 2}, "field", MethodError)


def test_dotted() -> None:
    assert find("pathlib:Path", {}, "field", MethodError) is Path
    with pytest.raises(MethodError, match="no 'Paht' in it; did you mean 'Path'"):
        find("pathlib:Paht", {}, "field", MethodError)


def test_nearest() -> None:
    assert nearest("lr", ["lr2", "epochs"]) == "did you mean 'lr2'?"
    assert nearest("zzz", ["b", "a"]) == "known: a, b"


def test_unknown_options() -> None:
    def model(info: Any, norm: str = "x", groups: int = 1) -> None: ...

    def any_option(info: Any, **options: Any) -> None: ...

    def none(info: Any) -> None: ...

    assert unknown_options(model, {"norm": 1, "groups": 2}, "model", given=1) == []
    (line,) = unknown_options(model, {"nomr": 1}, "model", given=1)
    assert line == "model.nomr = 1: no such option; did you mean 'norm'?"
    assert unknown_options(any_option, {"x": 1}, "model", given=1) == []
    assert unknown_options(none, {"x": 1}, "model", given=1) == ["model.x = 1: no such option; none takes none"]
    assert unknown_options(model, {"info": 1}, "model", given=1), "the data's own argument is no option"


def test_a_users_own_method_and_model(tmp_path: Path) -> None:
    """From the current folder; its failure is in the lines of the rounds; its run can be gone on with."""
    (tmp_path / "own.py").write_text(OWN)
    own = {
        "method.name": "own:Fragile",
        "model.name": "own:net",
        "model.hidden": None,
        "model.width": 6,
        "cohort": 6,
    }
    argv = ["run", *sets(own), "--out", "run"]
    assert server()(*argv, cwd=tmp_path, before="at('uneven.run:summary')").killed
    ended = server()("run", "--resume", "run", cwd=tmp_path)
    assert (ended.code, ended.err) == (0, "")
    assert "failed updates: 4" in ended.out
    for line in lines(tmp_path / "run" / "rounds.jsonl"):
        (failure,) = line["failures"]
        assert failure["client"] == 3
        assert failure["reason"].startswith("RuntimeError: battery empty (own.py, line 6, in train)")
    spec = (tmp_path / "run" / "spec.toml").read_text()
    assert 'name = "own:Fragile"\nbroken = 3' in spec
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    one_error(server()("run", "--resume", "../run", cwd=elsewhere), "own:Fragile", "cannot import 'own'")
    shown = server()("methods", "own:Fragile", cwd=tmp_path)
    assert "A method of one's own." in shown.out
    assert "The client that fails [sometimes]." in shown.out
    one_error(server()("run", *sets(own, {"method.brokn": 1}), cwd=tmp_path), "method.brokn = 1", "'broken'")
    one_error(server()("run", *sets(own, {"model.widht": 1}), cwd=tmp_path), "model.widht = 1", "'width'")
