"""What a kernel's statistics say against chains: step size, divergences, saturated trees, energies."""

from collections.abc import Collection, Mapping

import numpy as np

from ._diagnostics import bfmi
from ._finding import Finding, count, join, name_chains, sentence

BFMI_LIMIT = 0.3
MIN_DRAWS_BFMI = 50
SATURATED_SHARE = 0.01
SMALL_STEP = 1e-6  # where the metric is adapted, step sizes are near one; below this, float32 loses the step
STEP_RATIO = 0.01


def step_size_fault(step_size: np.ndarray | None, tuned: bool) -> list[Finding]:
    """A step size that is not positive and finite, below 1e-6, or below a hundredth of the median chain's."""
    if step_size is None or step_size.size == 0:
        return []
    legal = (np.isfinite(step_size) & (step_size > 0)).all(axis=1)
    typical = np.median(np.where(legal[:, None], step_size, np.nan), axis=1)
    collapsed = legal & (typical < SMALL_STEP)
    if legal.any():
        collapsed |= legal & (typical < STEP_RATIO * np.median(typical[legal]))
    chains = tuple(np.flatnonzero(~legal | collapsed).tolist())
    if not chains:
        return []
    shown = [f"{step_size[chain, -1]:.3g}" for chain in chains[:4]] + ["..."] * (len(chains) > 4)
    advice = (
        "Warm up longer, start elsewhere, or bring the parameters to a scale near one."
        if tuned
        else "The kernel is not tuned: give an adaptation, or another step size."
    )
    text = (
        f"The step size of {name_chains(chains)} has collapsed or is no positive number "
        f"({', '.join(shown)}), so that the draws hardly move. {advice}"
    )
    return [Finding("step_size", text, chains)]


def divergence_faults(divergences: np.ndarray, stuck: Collection[int], tuned: bool) -> list[Finding]:
    """Any divergence; and, as a finding of its own, chains that hold nearly all of many."""
    total = int(divergences.sum())
    if total == 0:
        return []
    holders = np.flatnonzero(divergences)
    largest = holders[np.argsort(-divergences[holders], kind="stable")]
    counts = [f"{divergences[chain]} in chain {chain}" for chain in largest[:4]]
    if len(holders) > 4:
        counts.append(f"{int(divergences[largest[4:]].sum())} in {count(len(holders) - 4, 'more chain')}")
    few = _concentrated(divergences)
    if few:
        advice = "Nearly all are in few chains: see `concentrated`."
    elif tuned:
        advice = "Draws near there are biased: raise target_accept, or reparametrise (a funnel: non-centred)."
    else:
        advice = "The kernel is not tuned: give an adaptation, or a smaller step size."
    text = f"{count(total, 'divergence')} after warm-up: {join(counts)}. {advice}"
    found = [Finding("diverging", text, tuple(holders.tolist()))]
    if few:
        one = len(few) == 1
        frozen = [chain for chain in few if chain in stuck]
        cause = (
            f"{name_chains(frozen)} {'is' if len(frozen) == 1 else 'are'} stuck as well"
            if frozen
            else f"{'it' if one else 'they'} sit where the step size is too long, or never left a bad start"
        )
        if one and not frozen:
            cause = cause.replace("it sit ", "it sits ")
        text = (
            f"{sentence(name_chains(few))} {'has' if one else 'have'} "
            f"{100 * divergences[few].sum() / total:.0f} % of the divergences: {cause}. This speaks against "
            f"{'this chain' if one else 'these chains'}, not for a hard posterior: start again with other "
            "initvals or a longer warm-up before you raise target_accept."
        )
        found.append(Finding("concentrated", text, tuple(few)))
    return found


def _concentrated(divergences: np.ndarray) -> list[int]:
    """Chains with 20 divergences or more, 10 times the median of the other chains, together 80 % of all.

    They are at most a third of the chains, of which there are three or more.
    """
    order = np.argsort(-divergences, kind="stable")
    for n_few in range(1, len(divergences) // 3 + 1):
        few, rest = order[:n_few], order[n_few:]
        if divergences[few].sum() >= 0.8 * divergences.sum():
            usual = max(1.0, float(np.median(divergences[rest])))
            strong = bool((divergences[few] >= max(20.0, 10 * usual)).all())
            return sorted(few.tolist()) if strong else []
    return []


def depth_fault(stats: Mapping[str, np.ndarray], max_depth: int | None, tuned: bool) -> list[Finding]:
    """Chains whose trees reach the depth limit in 1 % of their draws or more."""
    saturated = stats.get("reached_max_treedepth")
    if saturated is None and max_depth is not None and "tree_depth" in stats:
        saturated = stats["tree_depth"] >= max_depth
    if saturated is None or saturated.size == 0:
        return []
    share = saturated.astype(bool).mean(axis=1)
    chains = tuple(np.flatnonzero(share >= SATURATED_SHARE).tolist())
    if not chains:
        return []
    text = (
        f"Trees reach the depth limit{'' if max_depth is None else f' of {max_depth}'} in "
        f"{100 * share[list(chains)].mean():.0f} % of the draws of {name_chains(chains)}: slow, and "
        f"poorly mixed. {'Warm up longer' if tuned else 'Give an adaptation'}, reparametrise (parameters "
        "of very different scales, or strongly correlated), or raise max_depth."
    )
    return [Finding("max_depth", text, chains)]


def energy_fault(energy: np.ndarray | None) -> tuple[np.ndarray | None, list[Finding]]:
    """E-BFMI of each chain, and the chains where it is below 0.3."""
    if energy is None:
        return None, []
    each = bfmi(energy)
    if energy.shape[1] < MIN_DRAWS_BFMI or not (each < BFMI_LIMIT).any():
        return each, []
    chains = tuple(np.flatnonzero(each < BFMI_LIMIT).tolist())
    text = (
        f"E-BFMI is below {BFMI_LIMIT} in {name_chains(chains)} (down to {each[list(chains)].min():.2g}): "
        "momentum draws explore the energies slowly, as with heavy tails or a funnel. Reparametrise."
    )
    return each, [Finding("energy", text, chains)]
