"""The demo over seeds, beside FedAvg over the full-width clients only: `python benchmarks/demo_seeds.py [SEEDS]`.

Prints the final round's test accuracy of the full model and of each width. Takes about a minute a run.
"""

from __future__ import annotations

import sys

import uneven

METHODS = {"heterofl": {"name": "heterofl"}, "fedavg, full-width clients": {"name": "fedavg", "fit": "exclude"}}


def main(seeds: str = "3") -> None:
    print(f"{'method':<28} {'seed':>4} {'full':>6}  by capacity")
    for seed in range(int(seeds)):
        for name, method in METHODS.items():
            result = uneven.run(seed=seed, method=method, evaluation={"every": 60})
            rows = "  ".join(f"{row['capacity']:g}: {row['accuracy']:.3f}" for row in result["per_capacity"])
            print(f"{name:<28} {seed:>4} {result['accuracy']:>6.3f}  {rows}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
