"""Speed against the peers, in one run on one machine; ratios are what counts.

    python benchmarks/speed.py [--rows again,first,leapfrog,many,devices] [--quick] [--write]

Prints a table; --write puts it into docs/benchmarks.md. --quick takes small sizes, to see that everything runs.
Every part (_speed_parts.py) runs in a process of its own with nothing compiled; what is compared runs in turn, and
medians are given. Wall seconds come first, process-CPU seconds (all cores) beside them.
"""

import argparse
import sys
import time

import numpy as np
from _common import ROOT, Line, child, machine, median, pair, seconds, table


def row_again(quick: bool) -> list[Line]:
    lines = []
    results = child("again", quick=quick)
    for model in dict.fromkeys(r["model"] for r in results):
        mine = [r for r in results if r["model"] == model]
        cost = median([r["cost"] for r in mine])
        parts = ", ".join(
            f"{k} {1000 * np.median([r['parts'][k] for r in mine]):.0f}" for k in mine[0]["parts"]
        )
        what = f"{model}, 4 chains: second call, new data, new seed, twice the draws (1000)"
        compiled = max(r["compiled"] for r in mine)
        lines.append(Line(what, f"{pair(cost)}; ms: {parts}", "", f"{compiled} compilations", "0"))
    return lines


def row_first(quick: bool) -> list[Line]:
    mine, theirs = [], []
    for _ in range(1 if quick else 3):
        mine.append(child("ours", calls=5))
        theirs.append(child("numpyro", calls=1 if quick else 2))
    what = "eight schools, 4 chains, 2 devices, 1000 draws against NumPyro's parallel MCMC (1000 + 1000, 4 devices): "
    lines = []
    for key, label, asked in (
        ("first", "first call, tune=1000", ">= 1.8"),
        ("further", "further call, new data, tune=1000", ">= 20"),
        ("default", "further call, new data, default tune", ">= 20"),
    ):
        a, b = (median([r[key] for r in each]) for each in (mine, theirs))
        ratio = f"{b.wall / a.wall:.1f}x (CPU {b.cpu / a.cpu:.1f}x)"
        lines.append(Line(what + label, pair(a), pair(b), ratio, asked))
    a, b = (float(np.median([r["import"] + r["first"][0] for r in each])) for each in (mine, theirs))
    lines.append(
        Line("- that first call with the imports before it", seconds(a), seconds(b), f"{b / a:.1f}x")
    )
    a, b = (float(np.median([r["compile"] for r in each])) for each in (mine, theirs))
    lines.append(Line("- XLA's compilations in that first call, summed over threads", seconds(a), seconds(b)))
    return lines


def row_leapfrog(quick: bool) -> list[Line]:
    lines = []
    for model in ("eight_schools",) if quick else ("eight_schools", "logistic", "radon"):
        for r in child("leapfrog", model=model, quick=quick):
            us = lambda c: f"{1e6 * c[0]:.2f} us (CPU {1e6 * c[1]:.2f})"  # noqa: E731
            ratio = f"{r['ours'][0] / r['peer'][0]:.2f} (CPU {r['ours'][1] / r['peer'][1]:.2f})"
            what = (
                f"{model}, {r['chains']} chain(s), 1 device: cost per leapfrog of a draw block, and of BlackJAX in "
                "jit(scan(vmap))"
            )
            lines.append(Line(what, us(r["ours"]), us(r["peer"]), ratio, "<= 1.10"))
    return lines


def row_many(quick: bool) -> list[Line]:
    r = child("many", quick=quick)
    a, b = r["ours"], r["peer"]
    cost_a, cost_b = median([x["cost"] for x in a]), median([x["cost"] for x in b])
    per = lambda xs: f"{np.median([x['gradients'] / x['ess'] for x in xs]):.0f}"  # noqa: E731
    mean = lambda xs, key: f"{np.median([x[key] for x in xs]):.0f}"  # noqa: E731
    total = lambda xs, key: f"{sum(x[key] for x in xs)} in {len(xs)} seeds"  # noqa: E731
    rate = lambda xs: f"{np.median([x['ess'] / x['cost'][0] for x in xs]):.0f}"  # noqa: E731
    worst = lambda xs: f"{max(x['rhat'] for x in xs):.3f}"  # noqa: E731
    parts = ", ".join(f"{k} {1000 * np.median([x['parts'][k] for x in a]):.0f}" for k in a[0]["parts"])
    what = (
        f"radon, 64 chains, 500 draws: further call ({r['tune']} + 500, 2 devices) against BlackJAX's "
        "window_adaptation and NUTS vmapped in one jit (500 + 500)"
    )
    ratio = f"{cost_b.wall / cost_a.wall:.1f}x (CPU {cost_b.cpu / cost_a.cpu:.1f}x)"
    return [
        Line(what, f"{pair(cost_a)}; ms: {parts}", pair(cost_b), ratio, ">= 10"),
        Line("- frozen chains", total(a, "frozen"), total(b, "frozen"), "", "0 in 20 seeds"),
        Line("- worst bulk ESS (median over seeds)", mean(a, "ess"), mean(b, "ess")),
        Line("- worst R-hat of any seed", worst(a), worst(b)),
        Line("- divergences", total(a, "divergences"), total(b, "divergences")),
        Line("- gradients, warm-up included", mean(a, "gradients"), mean(b, "gradients")),
        Line("- gradients per ESS", per(a), per(b)),
        Line("- worst bulk ESS per second", rate(a), rate(b)),
    ]  # fmt: skip


def row_devices(quick: bool) -> list[Line]:
    lines = []
    names = {
        "logistic": "logistic regression, 20,000 x 50 (matrix products)",
        "robust": "Student-t regression, 4,000 rows (elementwise)",
        "radon": "radon, 919 rows (gathers)",
    }
    for model in ("robust",) if quick else names:
        r = child("devices", model=model, quick=quick)
        one, two = r["1"], r["2"]
        rate = lambda c: f"{8 * r['draws'] / c[0]:.0f} draws/s, {c[1] / c[0]:.1f} cores busy"  # noqa: B023, E731
        what = f"{names[model]}, 8 chains, HMC of 10 leapfrogs: two devices (left) against one (right)"
        lines.append(Line(what, rate(two), rate(one), f"{one[0] / two[0]:.2f}x", ">= 1.8"))
    return lines


ROWS = {
    "again": row_again,
    "first": row_first,
    "leapfrog": row_leapfrog,
    "many": row_many,
    "devices": row_devices,
}

INTRO = """# Speed

Written by `python benchmarks/speed.py --write`. Figures of one run; compare within a line only, because both sides of a
line ran in turn on the same machine. Wall seconds come first, process-CPU seconds of all cores in brackets; medians.
Where seconds are compared, a ratio above 1 means that chainmesh is faster; per leapfrog, below 1. A leapfrog is one
gradient of one chain. XLA's own threads inside an operation are left as they are, so one device may use more than one
core where a model has matrix products. BlackJAX runs as its users run it: vmapped in one jit, on one device.
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    told, lines = machine(), []
    rows = options.rows.split(",")
    if unknown := set(rows) - set(ROWS):
        sys.exit(f"no such row: {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}")
    for name in rows:
        begun = time.perf_counter()
        new = ROWS[name](options.quick)
        print(table(new), f"\n({name}: {time.perf_counter() - begun:.0f} s)\n", flush=True)
        lines += new
    text = f"{INTRO}\n{told}\n\n{table(lines)}\n"
    if options.write:
        (ROOT / "docs" / "benchmarks.md").write_text(text)
    else:
        print(told)


if __name__ == "__main__":
    main()
