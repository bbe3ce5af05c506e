"""The verdict at a run's end: what is wrong, in which chains and sites, and what to do.

The rules (those on single chains are stated in `_chain_faults`, those on statistics in `_stat_faults`):

- rhat: a scalar's R-hat is above 1.01, and above what agreeing chains pass in one run of a thousand. For
  half-chains of n draws with autocorrelation time t, R-hat^2 = 1 - 1/n + t F / (n + 1 - t), where F follows Fisher's
  law with 2 chains - 1 and 2 chains (n / t - 1) degrees of freedom; its quantile at 1 - 1e-3 / (2 scalars) is taken.
  t is estimated within chains, so that chains that disagree do not excuse themselves, and is cut such that 100
  effective draws a chain remain (20 in runs below 200 draws a chain): a scalar with fewer is not excused. It is
  then taken larger by a share 2 t / n, as short chains show too little of it.
  The bare 1.01 blames most clean runs of 4 chains of 100 draws, and a third of those of 4 chains of 1000 with an
  effective sample size of 200 a chain.
- ess: a scalar's bulk or tail effective sample size is below 100 a chain. Judged from 200 draws a chain on.

On clean runs (stationary autoregressive chains with 200 to 1000 effective draws each, 10 scalars) rhat spoke up in 1
of 1470 (400 of them with 4 chains of 1000 draws, 60 with 64 of 500), and in 0.3 to 2 % with 15 to 50 effective draws
a chain, where t is poorly known; nothing else spoke up in any.
"""

import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Integer, Shaped

from ._chain_faults import Far, duplicates, far_chains, moves, stuck_chains
from ._diagnostics import Diagnostics, diagnose, numeric
from ._finding import Finding, count, join, name_chains, name_sites, sentence
from ._stat_faults import depth_fault, divergence_faults, energy_fault, step_size_fault

RHAT_LIMIT = 1.01
ESS_PER_CHAIN = 100
FALSE_ALARMS = 1e-3  # of the R-hat rule, per run
MIN_DRAWS_RHAT = 20
MIN_DRAWS_ESS = 200


@dataclass(frozen=True, eq=False)
class Verdict:
    """What a run's diagnostics say; `print` it.

    Attributes:
        findings: what is wrong: the caller's own first, then chains at fault, then statistics, then mixing.
        diagnostics: R-hat, effective sample sizes, moments and quantiles of every scalar.
        notes: what could not be judged, and why.
        bfmi: E-BFMI of each chain; None where the kernel gives no energy.
    """

    findings: tuple[Finding, ...]
    diagnostics: Diagnostics
    notes: tuple[str, ...] = ()
    bfmi: np.ndarray | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    @property
    def codes(self) -> tuple[str, ...]:
        """Codes of the findings, each once."""
        return tuple(dict.fromkeys(finding.code for finding in self.findings))

    def chains_with(self, code: str) -> list[int]:
        """Numbers of the chains that findings of this code name, ascending."""
        return sorted(
            {chain for finding in self.findings if finding.code == code for chain in finding.chains}
        )

    @property
    def max_rhat(self) -> float:
        """Largest R-hat, constants and non-finite scalars left out; NaN for one chain or under 4 draws."""
        return self._extreme(self.diagnostics.rhat, np.max)

    @property
    def min_ess_bulk(self) -> float:
        """Smallest bulk effective sample size, constants and non-finite scalars left out."""
        return self._extreme(self.diagnostics.ess_bulk, np.min)

    @property
    def min_ess_tail(self) -> float:
        """Smallest tail effective sample size, constants and non-finite scalars left out."""
        return self._extreme(self.diagnostics.ess_tail, np.min)

    @property
    def constant(self) -> tuple[str, ...]:
        """Names of the scalars that are equal in all chains and draws, such as "L[0,1]"."""
        return tuple(self.diagnostics.name(int(i)) for i in np.flatnonzero(self.diagnostics.constant))

    def _extreme(self, values: np.ndarray, of: Callable) -> float:
        table = self.diagnostics
        values = values[table.finite & ~table.constant & ~np.isnan(values)]
        return float(of(values)) if len(values) else float("nan")

    def __str__(self) -> str:
        run = f"{count(self.diagnostics.n_chains, 'chain')} of {count(self.diagnostics.n_draws, 'draw')}"
        figures = []
        if not np.isnan(self.max_rhat):
            figures.append(f"R-hat at most {self.max_rhat:.4g}")
        if not np.isnan(self.min_ess_bulk):
            figures.append(f"ESS at least {self.min_ess_bulk:.0f} bulk, {self.min_ess_tail:.0f} tail")
        nothing = (
            "Nothing wrong found, as far as it could be judged," if self.notes else "Nothing wrong found"
        )
        what = nothing if self.ok else count(len(self.findings), "finding")
        shown = f" ({'; '.join(figures)})" if figures else ""
        head = f"{what} in {run}{shown}{'.' if self.ok else ':'}"
        lines = [f"  - {finding}" for finding in self.findings] + [f"  note: {note}" for note in self.notes]
        return "\n".join([head, *(textwrap.fill(line, 100, subsequent_indent="    ") for line in lines)])


def judge(
    posterior: Mapping[str, Shaped[np.ndarray, "chains draws ..."]],
    stats: Mapping[str, Shaped[np.ndarray, "chains draws"]],
    *,
    divergences: Integer[np.ndarray, " chains"] | None = None,
    max_depth: int | None = None,
    tuned: bool = True,
    extra_findings: Sequence[Finding] = (),
) -> Verdict:
    """Judges a finished run.

    Args:
        posterior: draws by site, (chain, draw, *event).
        stats: the kernel's statistics under ArviZ's names, as far as it has them.
        divergences: divergences of each chain after warm-up, those of steps that thinning left out included;
            None takes them from `stats`.
        max_depth: limit of the tree depth, for the text and where `stats` has no `reached_max_treedepth`.
        tuned: whether the kernel was tuned; changes the advice.
        extra_findings: findings of the caller, put first.

    Returns:
        the verdict.
    """
    arrays = {site: numeric(np.asarray(value)) for site, value in posterior.items()}
    values = {name: np.asarray(value) for name, value in stats.items()}
    table = diagnose(arrays)
    lp = values.get("lp")
    found: list[Finding] = list(extra_findings)

    broken, findings = _nan_fault(arrays)
    found += findings
    moved = moves(arrays, table, lp)
    stuck = {} if moved is None else stuck_chains(moved, table)
    stuck = {chain: how for chain, how in stuck.items() if chain not in broken}
    found += _stuck_fault(stuck)
    aside = {*stuck, *broken}
    found += _duplicate_fault(duplicates(arrays, moved, aside))
    far = far_chains(table, lp, aside)
    if far is not None:
        found.append(_far_fault(far))
    found += step_size_fault(values.get("step_size"), tuned)
    if divergences is None and "diverging" in values:
        divergences = values["diverging"].astype(bool).sum(axis=1)
    if divergences is not None:
        found += divergence_faults(np.asarray(divergences), stuck, tuned)
    found += depth_fault(values, max_depth, tuned)
    energy, findings = energy_fault(values.get("energy"))
    found += findings
    notes: list[str] = []
    found += _mixing_faults(table, {*stuck, *(far.chains if far is not None else ())}, notes)
    return Verdict(tuple(found), table, tuple(notes), energy)


def _nan_fault(arrays: Mapping[str, np.ndarray]) -> tuple[set[int], list[Finding]]:
    """The chains with NaN or infinite draws."""
    chains: set[int] = set()
    sites: list[str] = []
    for site, value in arrays.items():
        if value.dtype.kind != "f" or np.isfinite(value).all():
            continue
        broken = ~np.isfinite(value)
        chains |= set(np.flatnonzero(broken.reshape(len(value), -1).any(axis=1)).tolist())
        for index in np.argwhere(broken.any(axis=(0, 1))).tolist():
            sites.append(f"{site}[{','.join(map(str, index))}]" if index else site)
    if not chains:
        return chains, []
    text = (
        f"{sentence(name_chains(chains))} {'has' if len(chains) == 1 else 'have'} NaN or infinite draws in "
        f"{name_sites(sites)}, whose diagnostics are left out. Look for a log, square root, exponential "
        "or division at the edge of its domain, and for float32 overflow."
    )
    return chains, [Finding("nan", text, tuple(sorted(chains)), tuple(sites))]


def _stuck_fault(stuck: Mapping[int, str]) -> list[Finding]:
    if not stuck:
        return []
    if len(stuck) > 4 and len(set(stuck.values())) > 1:
        what = f"{name_chains(list(stuck))} hardly moved"
    else:
        ways = {how: [chain for chain in stuck if stuck[chain] == how] for how in stuck.values()}
        what = join([f"{name_chains(chains)} {how}" for how, chains in ways.items()])
    text = (
        f"{sentence(what)}. Such draws are no sample of the posterior. Start again with other initvals or "
        "a longer warm-up; where it happens again, look for a spike, a flat or a NaN gradient of the log "
        "density there."
    )
    return [Finding("stuck", text, tuple(stuck))]


def _duplicate_fault(groups: Sequence[tuple[int, ...]]) -> list[Finding]:
    if not groups:
        return []
    shown = [name_chains(group) for group in groups[:4]]
    if len(groups) > 4:
        shown.append(count(len(groups) - 4, "more group"))
    text = (
        f"{sentence(join(shown))} are equal, draw for draw, and count as one. Start each at a point of its own, "
        "with a key of its own (`chain_keys`)."
    )
    return [Finding("duplicate", text, tuple(sorted({chain for group in groups for chain in group})))]


def _far_fault(far: Far) -> Finding:
    """Words for chains that sample different places."""
    main, *others = far.groups
    if far.scattered:
        what = f"each of {name_chains(far.chains)} samples a place of its own"
    else:
        shown = [name_chains(group) for group in others[:4]]
        if len(others) > 4:
            shown.append(count(len(others) - 4, "more group"))
        verb = "samples" if len(others) == 1 and len(others[0]) == 1 else "sample"
        what = f"{join(shown)} {verb} another place than {name_chains(main)}"
        if len(others) > 1:
            what = f"{name_chains(main)} sample one place, and {join(shown)} each another"
    apart = (
        "with no spread at all within a chain"
        if np.isinf(far.gap)
        else f"{far.gap:.2g} within-chain sd apart"
    )
    weight = ""
    if far.lower is not None and len(others) == 1 and abs(far.lower) >= 1:
        weight = f", mean lp {abs(far.lower):.3g} {'lower' if far.lower > 0 else 'higher'}"
    text = (
        f"{sentence(what)} ({name_sites(far.sites)}: {apart}{weight}). Chains that do not meet say "
        "nothing on how much each place weighs: start from better initvals, identify the model (an "
        "order, a sign), or use a kernel that jumps between modes."
    )
    return Finding("far", text, far.chains, far.sites)


def _mixing_faults(table: Diagnostics, culprits: Collection[int], notes: list[str]) -> list[Finding]:
    """R-hat and effective sample sizes over all scalars; what cannot be judged goes to `notes`."""
    found: list[Finding] = []
    judged = np.flatnonzero(table.finite & ~table.constant)
    if not len(judged):
        notes.append("R-hat and effective sample sizes are not judged: no scalar varies.")
        return found
    if table.n_chains < 2:
        notes.append("R-hat is not judged: it takes two chains or more.")
    elif table.n_draws < MIN_DRAWS_RHAT:
        notes.append(f"R-hat is not judged: it takes {MIN_DRAWS_RHAT} draws a chain or more.")
    else:
        limits = rhat_limits(table, judged)
        over = np.flatnonzero(~(table.rhat[judged] <= limits))
        over = over[np.argsort(-table.rhat[judged[over]], kind="stable")]
        if len(over):
            sites = tuple(table.name(int(i)) for i in judged[over])
            advice = (
                f"{sentence(name_chains(culprits))}, named above, may be the cause."
                if culprits
                else "Warm up and draw longer, or reparametrise."
            )
            text = (
                f"R-hat is {table.rhat[judged[over[0]]]:.4g} for {name_sites(sites)} (limit "
                f"{limits[over[0]]:.4g}): the chains do not agree yet. {advice}"
            )
            found.append(Finding("rhat", text, (), sites))
        elif (worst := float(np.max(table.rhat[judged]))) > RHAT_LIMIT:
            notes.append(
                f"R-hat reaches {worst:.4g}: above {RHAT_LIMIT}, but no more than agreeing chains of this length show "
                "by chance. Draw longer to be sure."
            )
    if table.n_draws < MIN_DRAWS_ESS:
        notes.append(
            f"Effective sample sizes are not judged: {ESS_PER_CHAIN} a chain take {MIN_DRAWS_ESS} draws a "
            "chain or more."
        )
        return found
    least = np.minimum(table.ess_bulk, table.ess_tail)
    limit = ESS_PER_CHAIN * table.n_chains
    low = judged[~(least[judged] >= limit)]
    low = low[np.argsort(least[low], kind="stable")]
    if len(low):
        sites = tuple(table.name(int(i)) for i in low)
        text = (
            f"The effective sample size is {table.ess_bulk[low[0]]:.0f} bulk and "
            f"{table.ess_tail[low[0]]:.0f} tail for {name_sites(sites)}, below {limit} (100 a chain): "
            "means, quantiles and R-hat are not to be relied on. Draw more, or reparametrise."
        )
        found.append(Finding("ess", text, (), sites))
    return found


def rhat_limits(table: Diagnostics, scalars: np.ndarray) -> np.ndarray:
    """The limit of each scalar's R-hat: 1.01, or more for few draws and many chains, by the rule above.

    Args:
        table: diagnostics of a run.
        scalars: indices of the scalars that are judged; their number counts.
    """
    from scipy.special import fdtri  # type: ignore[import-untyped]

    n, halves = table.n_draws // 2, 2 * table.n_chains
    least = (ESS_PER_CHAIN if table.n_draws >= MIN_DRAWS_ESS else 20) / 2
    time = np.clip(np.nan_to_num(table.tau[scalars], nan=1.0), 1.0, max(1.0, n / least))
    time = np.minimum(time * (1 + 2 * time / n), n / 2)  # short chains show too little of it
    ratio = fdtri(halves - 1.0, halves * (n / time - 1), 1 - FALSE_ALARMS / (2 * len(scalars)))
    return np.maximum(RHAT_LIMIT, np.sqrt(1 - 1 / n + time * ratio / (n + 1 - time)))
