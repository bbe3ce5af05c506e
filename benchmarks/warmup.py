"""The evidence for the default warm-up: pooled windows against Stan's windows of 1000, target by target.

    python benchmarks/warmup.py run RESULTS.jsonl [--posteriors DIR] [--targets a,b] [--seeds 20]
    python benchmarks/warmup.py table RESULTS.jsonl > docs/warmup_table.md

A row per run goes to RESULTS.jsonl as soon as it is known; rows that are there are not run again. Chains that adapt
alone do not depend on each other, so Stan's windows run once per seed with the most chains asked for, and the first 2,
4 and 16 of them are judged too. Where a run takes over 20 s, five seeds are run.
"""

import argparse
import json
import pathlib
import sys
import time

import numpy as np

import chainmesh as cm

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests"))

CHAINS = (2, 4, 16, 64)
DRAWS = 500


def uniform_start(dim):
    import jax

    return lambda key: jax.random.uniform(key, (dim,), minval=-2.0, maxval=2.0)


def targets(folder):
    """Name -> (target, data, reference or None)."""
    import zoo_exact
    import zoo_posteriors

    out = {}
    for name, case in zoo_posteriors.CASES.items():
        path = pathlib.Path(folder) / f"{case.reference}.json"
        if path.exists() and not case.needs_x64:
            reference = json.loads(path.read_text())
            out[name] = (case.model, case.load(reference["data"]), (case, reference))
    for name in ("bimodal", "funnel", "funnel_mild", "rosenbrock", "gaussian_ar1"):
        exact = zoo_exact.EXACT.get(name)
        if exact is not None:
            out[name] = (cm.LogDensity(exact.logdensity, initial=uniform_start(exact.dim)), None, None)
    return out


def wrong(reference, posterior):
    """Largest distance of a pooled mean from the reference, in reference sds; heavy tails left out."""
    if reference is None:
        return None
    case, ref = reference
    worst = 0.0
    for name, draws in case.report(posterior).items():
        if name in ref.get("heavy_tailed", []):
            continue
        for index in np.ndindex(draws.shape[2:]):
            key = name + (f"[{','.join(str(i + 1) for i in index)}]" if index else "")
            r = ref["parameters"].get(key)
            if r is None:
                continue
            mean, sd = (
                (r["mean"], r["sd"]) if r.get("exact_mean") is None else (r["exact_mean"], r["exact_sd"])
            )
            worst = max(worst, abs(draws[(slice(None), slice(None), *index)].mean() - mean) / sd)
    return worst


def judged(run, chains, reference, name):
    """The row of the first `chains` chains of a run."""
    from chainmesh.sampler._verdict import judge

    posterior = {k: v[:chains] for k, v in run.posterior.items()}
    stats = {k: v[:chains] for k, v in run.stats.items()}
    verdict = judge(
        posterior, stats, divergences=run.tally.divergences[:chains], max_depth=run.kernel.max_tree_depth
    )
    row = {
        "chains": chains,
        "tune": run.tune,
        "stuck": len(verdict.chains_with("stuck")),
        "far": len(verdict.chains_with("far")),
        "nan": len(verdict.chains_with("nan")),
        "rhat": verdict.max_rhat,
        "rhat_fail": "rhat" in verdict.codes,
        "ess": verdict.min_ess_bulk,
        "divergences": int(run.tally.divergences[:chains].sum()),
        "warmup_leapfrogs": int(run.warmup_tally.leapfrogs[:chains].sum()),
        "leapfrogs": int(run.tally.leapfrogs[:chains].sum()),
        "wrong": wrong(reference, posterior),
    }
    if name == "bimodal":
        row["left"] = int((posterior["x"].reshape(chains, DRAWS, -1)[..., 0].mean(1) < 0).sum())
    return row


def run(path, folder, only, seeds, methods, counts):
    done = set()
    path = pathlib.Path(path)
    if path.exists():
        for line in path.read_text().splitlines():
            row = json.loads(line)
            done.add((row["target"], row["method"], row["chains"], row["seed"]))
    with path.open("a") as out:
        if unknown := only - set(targets(folder)):
            sys.exit(f"no such target: {', '.join(sorted(unknown))}")
        for name, (target, data, reference) in targets(folder).items():
            if only and name not in only:
                continue
            for method in methods:
                for chains in counts[-1:] if method == "stan" else counts:
                    limit = seeds
                    for seed in range(seeds):
                        if seed >= limit or (name, method, chains, seed) in done:
                            continue
                        adaptation = cm.StanWindows() if method == "stan" else cm.PooledWindows()
                        begun = time.perf_counter()
                        try:
                            result = cm.sample(
                                target, data=data, draws=DRAWS, chains=chains, seed=1000 + seed, adaptation=adaptation,
                                progress=lambda snapshot: None,
                            )  # fmt: skip
                        except cm.ChainmeshError as error:
                            rows = [{"chains": chains, "error": str(error)[:200]}]
                        else:
                            rows = [judged(result, c, reference, name)
                                    for c in (counts if method == "stan" else (chains,))]  # fmt: skip
                        seconds = time.perf_counter() - begun
                        if seed > 0 and seconds > 20:
                            limit = 5
                        for row in rows:
                            row = {
                                "target": name,
                                "method": method,
                                "seed": seed,
                                "seconds": round(seconds, 2),
                                **row,
                            }
                            out.write(json.dumps(row) + "\n")
                        out.flush()
                        told = {k: rows[-1].get(k) for k in ("stuck", "far", "rhat", "ess", "wrong", "error")}
                        print(name, method, chains, seed, f"{seconds:.1f}s", told, flush=True)


def table(path):
    rows = [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]
    names = list(dict.fromkeys(r["target"] for r in rows))
    print(
        "| target | chains | seeds | frozen chains | far chains | R-hat failed | wrong mean | ESS per 1000 gradients |"
    )
    print("|---|---|---|---|---|---|---|---|")
    total = {}
    for name in names:
        for chains in CHAINS:
            cells = {}
            for method in ("pooled", "stan"):
                some = [r for r in rows if (r["target"], r["method"], r["chains"]) == (name, method, chains)]
                some = [r for r in some if "error" not in r]
                if not some:
                    continue
                cells[method] = {
                    "n": len(some),
                    "stuck": sum(r["stuck"] for r in some),
                    "far": sum(r["far"] for r in some),
                    "rhat": sum(r["rhat_fail"] for r in some),
                    "wrong": sum((r["wrong"] or 0) > 0.5 for r in some),
                    "eff": float(
                        np.median([1000 * r["ess"] / (r["leapfrogs"] + r["warmup_leapfrogs"]) for r in some])
                    ),
                }
                sums = total.setdefault(
                    (chains, method), dict.fromkeys(("n", "stuck", "far", "rhat", "wrong"), 0)
                )
                for key in sums:
                    sums[key] += cells[method][key]
            if len(cells) == 2:
                p, s = cells["pooled"], cells["stan"]
                print(f"| {name} | {chains} | {p['n']} / {s['n']} | "
                      + " | ".join(f"{p[k]} / {s[k]}" for k in ("stuck", "far", "rhat", "wrong"))
                      + f" | {p['eff']:.2f} / {s['eff']:.2f} |")  # fmt: skip
    for chains in CHAINS:
        if (chains, "pooled") in total and (chains, "stan") in total:
            p, s = total[chains, "pooled"], total[chains, "stan"]
            print(f"| **all** | {chains} | {p['n']} / {s['n']} | "
                  + " | ".join(f"{p[k]} / {s[k]}" for k in ("stuck", "far", "rhat", "wrong")) + " | |")  # fmt: skip


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("results")
    parser.add_argument("--posteriors", default="../shared/posteriors")
    parser.add_argument("--targets", default="")
    parser.add_argument("--methods", default="stan,pooled")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--chains", default="2,4,16,64")
    options = parser.parse_args()
    if options.what == "table":
        table(options.results)
        return
    cm.set_host_devices(2)
    counts = tuple(int(c) for c in options.chains.split(","))
    only = set(filter(None, options.targets.split(",")))
    run(options.results, options.posteriors, only, options.seeds, options.methods.split(","), counts)


if __name__ == "__main__":
    main()
