"""The command ``uneven``: thin, over the Python interface."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from uneven import data, describe
from uneven.errors import RunError, SpecError, UnevenError
from uneven.experiment import load_model
from uneven.progress import ComparisonView, Terminal, closing_lines, comparison_tables, result_table
from uneven.run import one_thread, start
from uneven.run import resume as resume_run
from uneven.spec import Spec, load, parse, read, setting
from uneven.submodels.cost import Unit
from uneven.submodels.memory import HEADROOM
from uneven.tracking import RunFolder, explained, new_folder

app = typer.Typer(
    help="Federated learning on uneven devices and uneven data.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

SpecFile = Annotated[Path | None, typer.Argument(metavar="[SPEC.toml]", help="Without one: the demo.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="a.b=value", help="Change one key of the spec.")
]
Profile = Annotated[str | None, typer.Option(help="Lay the spec's table [profile.NAME] over it.")]


def main() -> None:
    """Run the command; a user's mistake is one message and exit code 2."""
    try:
        app()
    except UnevenError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


@app.command()
def run(
    spec: SpecFile = None,
    sets: Settings = None,
    profile: Profile = None,
    out: Annotated[
        Path | None, typer.Option(help="The run folder. Default: the next free runs/<name>-<n>.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in --out.")] = False,
    resume: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Go on with a run that was stopped.")
    ] = None,
) -> None:
    """Train a federation: the spec's, or the demo's."""
    console = _console()
    with Terminal(console) as terminal:
        if resume is not None:
            if spec or sets or profile or out or overwrite:
                raise SpecError(["--resume takes the run's own spec: give no other argument with it"])
            folder = RunFolder(resume)
            train = partial(resume_run, resume, terminal)
        else:
            chosen = _spec(spec, sets, profile)
            if overwrite and out is None:
                raise SpecError(["--overwrite: has no effect without --out, the default folder is always new"])
            folder = RunFolder(out or new_folder(Path("runs"), chosen.name))
            train = partial(start, chosen, folder, overwrite, terminal)
        try:
            result = train()
        except KeyboardInterrupt:
            print(f"stopped; go on with uneven run --resume {folder.path}", file=sys.stderr)
            raise typer.Exit(130) from None
    console.print(result_table(result))
    for line in (*closing_lines(result), f"result: {folder.path / 'result.json'}"):
        console.print(line, soft_wrap=True)


@app.command()
def compare(
    spec: SpecFile = None,
    methods: Annotated[
        str, typer.Option(metavar="A,B,...", help="Methods, or tables [compare.LABEL] of the spec.")
    ] = "heterofl,federated_dropout,fedrolex",
    seeds: Annotated[str, typer.Option(metavar="0-4", help="Seeds, like 0-4 or 0,3,7.")] = "0-2",
    sets: Settings = None,
    profile: Profile = None,
    grid: Annotated[
        list[str] | None, typer.Option(metavar="a.b=x,y", help="Run with each of these values.")
    ] = None,
    tune: Annotated[
        list[str] | None,
        typer.Option(metavar="a.b=x,y", help="Of these values, take each method's best on validation data."),
    ] = None,
    tune_seed: Annotated[
        int | None, typer.Option(min=0, help="The seed of --tune. Default: the first from 1000 not in --seeds.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time, each with one thread.")] = 1,
    match: Annotated[
        str | None,
        typer.Option(metavar="UNIT", help="Equal budgets: params, macs, bytes or memory."),
    ] = None,
    target: Annotated[
        float | None, typer.Option(metavar="0.6", help="Show what it takes to reach this accuracy.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder; goes on if it exists. Default: runs/<name>-comparison.")
    ] = None,
) -> None:
    """Compare methods over seeds: means with 95 % intervals, differences in pairs, costs."""
    from uneven import comparison, tuning  # scipy takes a while to import

    if target is not None and not 0 < target <= 1:
        raise SpecError([f"--target {target:g}: must be an accuracy in (0, 1], as 0.6"])
    over = [setting(text) for text in sets or []] + ([{"match": match}] if match else [])
    table = {} if spec is None else {"name": spec.stem, **read(spec)}
    name = next((layer["name"] for layer in [*reversed(over), table] if "name" in layer), "demo")
    folder = out or Path("runs") / f"{name}-comparison"
    named, numbered = [name.strip() for name in methods.split(",")], comparison.parse_seeds(seeds)
    rows = comparison.rows(table, over, profile, methods=named, grid=grid or [], out=folder)
    console = _console()

    def execute(runs: Sequence[comparison.Run], what: str) -> dict[Path, str]:
        with ComparisonView(console, runs, what) as view:
            return comparison.execute(runs, jobs, view.refresh)

    failed: dict[Path, str] = {}
    if tune:
        trials = tuning.plan(rows, tune, numbered, tune_seed)
        failed = execute([run for _, runs in trials for run in runs], "runs to choose values")
        rows = tuning.chosen(trials)
    elif tune_seed is not None:
        raise SpecError(["--tune-seed: has no effect without --tune"])
    runs = comparison.plan(rows, numbered)
    failed |= execute(runs, "runs")
    summary = comparison.summarise(rows, runs, target)
    outcome = {"match": rows[0].spec(numbered[0]).match, "target": target, "rows": summary}
    RunFolder(folder).write("comparison.json", json.dumps(outcome, indent=2) + "\n")
    for shown in comparison_tables(summary, target):
        console.print(shown)
    console.print("* down and up, of all clients of a round; an estimate: the tensors that travel, uncoded")
    console.print(f"result: {folder / 'comparison.json'}", soft_wrap=True)
    if failed:
        raise RunError("\n".join(f"{path}: {message}" for path, message in failed.items()))


@app.command()
def methods(name: Annotated[str | None, typer.Argument(help="Show this method in full.")] = None) -> None:
    """All methods; or one: its paper, its rule, its options."""
    console = _console()
    if name is None:
        console.print(describe.all_methods())
    else:
        for part in describe.method(name):
            console.print(part)


@app.command("data")
def show_data(
    spec: SpecFile = None,
    sets: Settings = None,
    profile: Profile = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Where to draw the plot.")] = None,
) -> None:
    """Show how the clients share the data: sizes, labels, a plot."""
    from uneven.data import table  # matplotlib takes a while to import

    chosen = _spec(spec, sets, profile)
    federation = data.load(chosen.data, chosen.clients.count, chosen.seed)
    console = _console()
    console.print(table.table(table.describe(federation)))
    target = plot or Path(f"{chosen.name}-data.png")
    try:
        table.plot(federation, target)
    except (OSError, ValueError) as error:
        raise UnevenError(f"--plot {target}: {error}") from error
    console.print(f"plot: {target}", soft_wrap=True)


@app.command()
def plan(
    spec: SpecFile = None,
    sets: Settings = None,
    profile: Profile = None,
    memory: Annotated[str | None, typer.Option(metavar="512MB", help="Memory for training, at most.")] = None,
    device: Annotated[
        str | None,
        typer.Option(metavar="CLASS", help="Memory of this class of the spec's devices, or the built-in."),
    ] = None,
    macs: Annotated[str | None, typer.Option(metavar="1G", help="MACs of one example, at most.")] = None,
    bytes_: Annotated[str | None, typer.Option("--bytes", metavar="2MB", help="One message, at most.")] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Run each width in a process of its own.")] = False,
) -> None:
    """Show what each width of the model costs on a device, the widest that fits the limits, who gets how much."""
    from uneven import plan as planning

    chosen = _spec(spec, sets, profile)
    given: dict[Unit, str | None] = {"memory": memory, "macs": macs, "bytes": bytes_}
    limits = {u: planning.limit(text, f"--{u}") for u, text in given.items() if text is not None}
    if device is not None:
        if memory is not None:
            raise SpecError(["--device says how much memory there is: give no --memory with it"])
        limits["memory"], given["memory"] = planning.device_memory(chosen, device), f"that of {device}"
    console = _console()
    with one_thread():
        planner = planning.Planner(chosen)
        rows = [planner.row(width, measure) for width in planning.WIDTHS]
        console.print(planning.table(rows, chosen.training.batch_size))
        devices = planner.devices()
        if devices is not None:
            console.print(devices)
            console.print(f"* predicted, and {HEADROOM:.0%} for the allocator", soft_wrap=True)
            console.print(
                "** of the mean of its clients: the part comes, is trained, and goes back", soft_wrap=True
            )
        if not chosen.allocation_class.DEALS_CAPACITIES:
            for shown in planner.clients():
                console.print(shown, soft_wrap=isinstance(shown, str))
        if not limits:
            return
        said = ", ".join(f"{unit} at most {given[unit]}" for unit in limits)
        widest = planner.widest(limits)
        if widest is None:
            raise SpecError([f"no width fits ({said}): the smallest costs more"])
        console.print(f"the widest that fits ({said}): {widest:.4g}")
        console.print(planning.table([planner.row(widest, measure)], chosen.training.batch_size))


@app.command()
def groups(
    spec: SpecFile = None,
    sets: Settings = None,
    profile: Profile = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Where to draw the picture.")] = None,
) -> None:
    """Show a model's channel groups: which tensors share them, and what cannot be dropped and why."""
    from uneven import structure_view

    chosen = _spec(spec, sets, profile)
    with one_thread():
        _, supernet = load_model(chosen)
    console = _console()
    console.print(structure_view.groups_table(supernet))
    console.print(structure_view.kept_table(supernet))
    share = structure_view.droppable_share(supernet)
    console.print(f"{supernet.size:,} parameters; at the smallest width {1 - share:.2%} of them are left")
    if plot is not None:
        with explained(f"cannot write the picture {plot}"):
            structure_view.plot(supernet, plot)
        console.print(f"picture: {plot}", soft_wrap=True)


def _console() -> Console:
    """Shows text as it is: a folder may be called ``[b]`` or ``:x:``."""
    return Console(markup=False, emoji=False, highlight=False)


def _spec(path: Path | None, sets: list[str] | None, profile: str | None) -> Spec:
    over = [setting(text) for text in sets or []]
    return parse({}, over, profile) if path is None else load(path, over, profile)
