"""What a user gets wrong: one clear error, exit code 2, and nothing written over."""

from pathlib import Path
from typing import Any

import pytest

from tests.run.helpers import Ended, files, lines, one_error, server, sets, tiny_data

MINE = """\
import torch
from torch import nn

class Branch(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        logits = self.head(x.flatten(1))
        if logits.sum() > 0:  # line 11
            return logits
        return -logits

class Sums(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.first, self.head = nn.Linear(64, 8), nn.Linear(8, classes)

    def forward(self, x):
        h = self.first(x.flatten(1))
        h = torch.cumsum(h, dim=1)  # line 22
        return self.head(h)

def branch(info):
    return Branch(info.num_classes)

def sums(info):
    return Sums(info.num_classes)

def needs_more(info, size):
    return Branch(size)

def nothing(info):
    return None

number = 5
"""
SPECS = {
    "many.toml": """\
rouns = 3
seed = -1
quorum = 2
[training]
lr = 0
epoch = 2
[data]
partition = { kind = "iid", alpha = 1 }
[clients]
capacities = [1, 0, 1.5]
[model]
name = "cnn"
norn = "batch"
[method]
name = "scafold"
""",
    "not.toml": "rounds = = 3\n",
    "binary.toml": "\x00",
    "profiles.toml": "rounds = 3\n[profile.large]\nrounds = 9\n[profile]\nflat = 3\n",
}


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """A folder with a user's own models and specs, some of them wrong, and something that must survive."""
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "broken.py").write_text("import torch\nx = undefined\n")
    (tmp_path / "syntax.py").write_text("def f(:\n")
    for name, text in SPECS.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter-1.tex").write_text("years of work")
    return tmp_path


def fails(desk: Path, *argv: object) -> Ended:
    """How a wrong command ends; every file is as it was, and there is none more."""
    before = files(desk)
    ended = server()(*argv, cwd=desk)
    after = {name: content for name, content in files(desk).items() if "__pycache__" not in name}
    assert after == before
    assert not (desk / "runs").exists()
    return ended


WRONG_KEYS: list[tuple[dict[str, Any], list[str]]] = [
    # A key that there is not, with the nearest that there is.
    ({"rouns": 3}, ["rouns = 3: no such key", "'rounds'"]),
    ({"training.batchsize": 3}, ["training.batchsize = 3: no such key", "'batch_size'"]),
    ({"data.partition.aplha": 3}, ["data.partition.aplha = 3: no such key", "'alpha'"]),
    ({"clients.capacities.level": [1]}, ["clients.capacities.level = [1]: no such key", "'levels'"]),
    ({"data.partition.kind": "iid", "data.partition.alpha": 1}, ["alpha = 1: no such key; known: kind"]),
    ({"data.partition.kind": "dirichle"}, ["data.partition.kind = 'dirichle'", "'dirichlet'"]),
    ({"method.scalar": True}, ["method.scalar = True: no such key", "'scaler'"]),
    ({"model.hiden": [3]}, ["model.hiden = [3]: no such option", "'hidden'"]),
    ({"model.name": "mlpp"}, ["model.name = 'mlpp'", "'mlp'"]),
    ({"method": "fedavgg"}, ["method.name = 'fedavgg'", "'fedavg'"]),
    # Wrong types and values.
    ({"rounds": "many"}, ["rounds = 'many'", "valid integer"]),
    ({"rounds": 2.5}, ["rounds = 2.5", "valid integer"]),
    ({"rounds": 0}, ["rounds = 0", "greater than or equal to 1"]),
    ({"cohort": 1.5}, ["cohort = 1.5"]),
    ({"cohort": "all"}, ["cohort = 'all'", "integer", "number"]),
    ({"training.lr": [1]}, ["training.lr = [1]", "valid number"]),
    ({"training": 3}, ["training = 3: must be a table"]),
    ({"data.source": 3}, ["data.source = 3", "valid string"]),
    ({"method": 3}, ["method.name = 3", "valid string"]),
    ({"method.scaler": "x"}, ["method.scaler = 'x'", "valid boolean", "'auto'"]),
    ({"model.hidden": "x"}, ["'mlp'", "'hidden': 'x'"]),
    ({"name": "../x"}, ["name = '../x'"]),
    ({"engine.name": "fast"}, ["engine.name = 'fast'", "'serial'"]),
    ({"clients.capacities": 0}, ["clients.capacities = 0", "greater than 0"]),
    ({"clients.capacities": 1.5}, ["clients.capacities = 1.5", "less than or equal to 1"]),
    ({"clients.capacities": [1, 0]}, ["clients.capacities.1 = 0", "greater than 0"]),
    ({"clients.capacities.levels": [0.5, 1.5]}, ["clients.capacities.levels.1 = 1.5"]),
    # What does not go together.
    ({"clients.capacities": [1, 0.5]}, ["2 values for 6 clients"]),
    ({"clients.count": 91}, ["91 clients", "90"]),
    ({"cohort": 7}, ["cohort = 7", "6"]),
    ({"method": "fedavg", "method.fit": "exclude", "cohort": 3}, ["cohort = 3: only 2 of 6 clients"]),
    ({"method": "fedavg"}, ["method.fit", "'exclude'", "'smallest'"]),
    ({"method": "fedavg", "method.fit": "exclude", "clients.capacities": 1}, ["method.fit", "no effect"]),
    (
        {"method": "scaffold", "clients.capacities": 1, "training.momentum": 0.9},
        ["training.momentum = 0.9", "SGD"],
    ),
    ({"method": "scaffold", "clients.capacities": 1, "training.optimizer": "adamw"}, ["training.optimizer"]),
    ({"model": {"name": "cnn"}, "method.scaler": True}, ["method.scaler = true: has no effect"]),
    ({"method.static_batch_norm": True}, ["method.static_batch_norm = true: has no effect"]),
    ({"training.steps": 3}, ["epochs = 1 and steps = 3"]),
    ({"training.optimizer": "adamw", "training.momentum": 0.5}, ["momentum = 0.5", "no effect"]),
    ({"training.decay": 0.5}, ["decay", "no effect"]),
    ({"server.momentum": 0.9}, ["server: momentum = 0.9", "no effect", "'average'"]),
    ({"data.client": "user"}, ["client = 'user'", "no effect"]),
    ({"data.task": "next_word"}, ["data.task = 'next_word'", "'classify' or 'next_token'"]),
    ({"data.task": "next_token", "data.shape": None}, ["data.task = 'next_token': needs texts"]),
    ({"data.min_count": 2}, ["min_count = 2 has no effect with tokenizer 'bpe'"]),
    # What is not there.
    ({"data.source": "nowhere/train.parquet"}, ["data.source = 'nowhere/train.parquet'"]),
    ({"data.source": "fashion-mni", "data.shape": None}, ["'fashion-mini'"]),
    ({"data.label": "lable"}, ["data.label = 'lable'", "'label'"]),
    ({"model": {"name": "mine:brnch"}}, ["model.name = 'mine:brnch'", "'branch'"]),
    ({"model": {"name": "mnie:branch"}}, ["cannot import 'mnie'"]),
    ({"model": {"name": "broken:f"}}, ["cannot import 'broken'", "NameError", "undefined"]),
    ({"model": {"name": "syntax:f"}}, ["cannot import 'syntax'", "SyntaxError", "line 1"]),
    ({"model": {"name": "mine:number"}}, ["mine:number", "function"]),
    ({"model": {"name": "mine:nothing"}}, ["mine:nothing", "torch.nn.Module"]),
    ({"model": {"name": "mine:needs_more"}}, ["mine:needs_more", "'size'"]),
    ({"method": "mine:sums"}, ["mine:sums", "class"]),
    # Models that cannot be cut.
    ({"model": {"name": "mine:sums"}}, ["operator cumsum", "mine.py:22", "torch.cumsum(h, dim=1)"]),
]


def arguments(keys: dict[str, Any]) -> list[str]:
    """``--set`` arguments; a user's own model does not take the options of the tiny runs' model."""
    if "name" in str(keys.get("model")):
        keys = {k: v for k, v in keys.items() if k != "model"} | {"model.name": keys["model"]["name"]}
        keys |= {"model.hidden": None}
    return sets(keys)


@pytest.mark.parametrize(
    ("keys", "says"), WRONG_KEYS, ids=lambda value: "" if isinstance(value, list) else str(value)
)
def test_a_wrong_key(keys: dict[str, Any], says: list[str], desk: Path) -> None:
    message = one_error(fails(desk, "run", *arguments(keys)), *says)
    assert len(message.splitlines()) == (3 if "cumsum" in message else 1)


FINITE = "input should be a finite number"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["devices.shares={laptop=inf}"], f"devices.shares.laptop = inf: {FINITE}"),
        (["devices.shares={laptop=nan}"], f"devices.shares.laptop = nan: {FINITE}"),
        (
            ["clients.capacities={levels=[1, 0.5], shares=[1, inf]}"],
            f"clients.capacities.shares.1 = inf: {FINITE}",
        ),
        (
            ["clients.capacities={levels=[1, 0.5], shares=[nan, 1]}"],
            f"clients.capacities.shares.0 = nan: {FINITE}",
        ),
        (["server.weights='qffl'", "server.q=inf"], f"server.q = inf: {FINITE}"),
        (["server.weights='qffl'", "server.q=nan"], f"server.q = nan: {FINITE}"),
        (["server.weights='afl'", "server.weights_lr=inf"], f"server.weights_lr = inf: {FINITE}"),
        (["method='fedrts'", "method.density=0.5", "method.strength=inf"], f"method.strength = inf: {FINITE}"),
        (["method='fedrts'", "method.density=0.5", "method.strength=nan"], f"method.strength = nan: {FINITE}"),
        (["training.lr=inf"], f"training.lr = inf: {FINITE}"),
        (["allocation='uniform'", "allocation.caps=[nan, 1]"], f"allocation.caps.0 = nan: {FINITE}"),
        (["allocation='hasa'", "allocation.noise=inf"], f"allocation.noise = inf: {FINITE}"),
        (
            ["devices.file='~nosuchuser/x'", "devices.shares={a=1}"],
            "devices.file = '~nosuchuser/x': cannot be read",
        ),
    ],
    ids=lambda value: "" if isinstance(value, str) else value[-1],
)
def test_numbers_that_are_not_finite_and_homes_that_nobody_has(given: list[str], says: str, desk: Path) -> None:
    message = one_error(fails(desk, "run", *sets(), *(part for key in given for part in ("--set", key))))
    assert message.startswith(says)
    assert "\n" not in message


def test_a_model_that_cannot_be_exported(desk: Path) -> None:
    """PyTorch prints the graph so far; the error comes last, with the line that asks for a value."""
    ended = fails(desk, "run", *arguments({"model": {"name": "mine:branch"}}))
    assert ended.code == 2
    message = ended.err.rpartition("error: ")[2]
    assert "Branch cannot be exported" in message
    assert "mine.py:11: if logits.sum() > 0:" in message
    assert "Traceback" not in ended.err


def test_every_problem_of_a_spec_is_named_at_once(desk: Path) -> None:
    message = one_error(fails(desk, "run", "many.toml"))
    keys = {line.partition(" = ")[0] for line in message.splitlines()}
    assert keys == {
        *("rouns", "seed", "quorum", "training.lr", "training.epoch", "data.partition.alpha", "model.norn"),
        *("clients.capacities.1", "clients.capacities.2", "method.name"),
    }


WRONG_COMMANDS: list[tuple[list[str], list[str]]] = [
    (["run", "nothing.toml"], ["nothing.toml", "No such file"]),
    (["run", "thesis"], ["thesis", "directory"]),
    (["run", "not.toml"], ["not.toml is not TOML", "line 1"]),
    (["run", "binary.toml"], ["binary.toml is not TOML"]),
    (["run", "profiles.toml", "--profile", "lrage"], ["profile = 'lrage'", "'large'"]),
    (["run", "profiles.toml", "--profile", "flat"], ["profile.flat = 3: must be a table"]),
    (["run", "--profile", "large"], ["profile = 'large'", "no [profile"]),
    (["run", "--set", "rounds"], ["--set 'rounds'", "a.b=value"]),
    (["run", "--set", "=3"], ["--set '=3'", "a.b=value"]),
    (["run", "--resume", "thesis"], ["thesis is not a run folder", "spec.toml"]),
    (["run", "--resume", "nothing"], ["nothing is not a run folder"]),
    (["run", "--resume", "thesis", "--set", "seed=1"], ["--resume"]),
    (["run", "--resume", "thesis", "--out", "x"], ["--resume"]),
    (["run", "many.toml", "--resume", "thesis"], ["--resume"]),
    (["run", "--overwrite"], ["--overwrite", "--out"]),
    (["run", *sets(), "--out", "thesis"], ["thesis exists", "--overwrite", "--resume"]),
    (["run", *sets(), "--out", "thesis", "--overwrite"], ["thesis is not a run folder"]),
    (["run", *sets(), "--out", "mine.py"], ["mine.py exists"]),
    (["run", *sets(), "--out", "mine.py", "--overwrite"], ["mine.py is not a run folder"]),
    (["run", *sets(), "--out", "mine.py/run"], ["cannot write to mine.py/run", "Not a directory"]),
    (["methods", "scafold"], ["'scafold'", "'scaffold'"]),
    (["methods", "nmae"], ["'nmae'", "fedavg"]),
    (["data", *sets(), "--plot", "nowhere/x.png"], ["--plot nowhere/x.png", "No such file"]),
    (["data", *sets(), "--plot", "x.docx"], ["--plot x.docx", "docx"]),
    (["data", *sets(rouns=3)], ["rouns = 3"]),
]


@pytest.mark.parametrize(
    ("argv", "says"), WRONG_COMMANDS, ids=[" ".join(a[:2] + a[-2:])[:50] for a, _ in WRONG_COMMANDS]
)
def test_a_wrong_command(argv: list[str], says: list[str], desk: Path) -> None:
    message = one_error(fails(desk, *argv), *says)
    assert "\n" not in message


def test_an_unknown_argument(desk: Path) -> None:
    ended = fails(desk, "run", "--sett", "rounds=3")
    assert ended.code == 2
    assert "No such option: --sett" in ended.err


def test_a_run_is_not_written_over(desk: Path) -> None:
    assert server()("run", *sets(), "--out", "first", cwd=desk).code == 0
    one_error(fails(desk, "run", *sets(seed=1), "--out", "first"), "first exists")
    # Being told to is not enough where the new spec does not hold.
    one_error(fails(desk, "run", *sets(cohort=7), "--out", "first", "--overwrite"), "cohort = 7")


def test_quorum(desk: Path) -> None:
    """The run stops in the round that failed; what was computed before is there, and can be gone on with."""
    fault = (
        "from uneven.training import TrainingOptions as T\n"
        "lr = T.lr_at\n"
        "T.lr_at = lambda self, t, rounds: lr(self, t, rounds) * (float('nan') if t == 3 else 1)"
    )
    ended = server()("run", *sets(), "--out", "run", cwd=desk, before=fault)
    one_error(ended, "round 3", "0 of 3", "quorum = 0.5 needs 2", "heterofl, client", "training.lr")
    assert [line["round"] for line in lines(desk / "run" / "rounds.jsonl")] == [1, 2]
    assert sorted(path.name for path in (desk / "run").iterdir()) == [
        "checkpoint.safetensors",
        "rounds.jsonl",
        "spec.toml",
    ]
    assert server()("run", *sets(rounds=2), "--out", "two", cwd=desk).code == 0
    checkpoint = "checkpoint.safetensors"
    assert (desk / "run" / checkpoint).read_bytes() == (desk / "two" / checkpoint).read_bytes()


def test_the_data_are_never_touched(desk: Path) -> None:
    before = files(Path(tiny_data()))
    one_error(fails(desk, "run", *sets(), "--out", tiny_data(), "--overwrite"), "is not a run folder")
    assert files(Path(tiny_data())) == before
