"""Slow GPUs inside nodes: exchanges of GPU pairs, and what single GPUs and nodes do alone, each against the same place on other nodes. numpy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from nccl_bench.verdict.ends import MAD_TO_SIGMA, MAX_CHANCE, MIN_EFFECT, SHARE, SIGMAS, binomial_tail, look_at
from nccl_bench.verdict.evidence import SMALL_BOTH, Alone, Inside, Suspect

MIN_LIKE = 4
"""Nodes it takes to compare a pair of GPUs with the same pair elsewhere; fewer are compared with all pairs of their kind."""
MIN_SPREAD = 0.01
"""Least standard deviation taken for repeats of one device: clocks and temperatures of healthy GPUs differ by about 1 %."""


def slow_gpus(inside: Inside, hosts: Sequence[str]) -> list[Suspect]:
    """GPUs slow with most of their node's others; a link where only one pair is slow, both ends being fast otherwise."""
    if not len(inside.node):
        return []
    n_gpus = int(max(inside.a.max(), inside.b.max())) + 1
    place = np.minimum(inside.a, inside.b) * n_gpus + np.maximum(inside.a, inside.b)
    like = len(np.unique(inside.node)) >= MIN_LIKE
    looked = look_at(inside.speed, inside.stratum, place if like else None)
    found: list[Suspect] = []
    for small in (False, True):
        use = (inside.stratum >= SMALL_BOTH) == small
        if use.any():
            found += [
                one for one in _of_size(inside, looked.slow, looked.loss, use, n_gpus, hosts) if one.name() not in {known.name() for known in found}
            ]
    return found


def _of_size(inside: Inside, slow: np.ndarray, loss: np.ndarray, use: np.ndarray, n_gpus: int, hosts: Sequence[str]) -> list[Suspect]:
    size = len(hosts) * n_gpus
    a, b = inside.node * n_gpus + inside.a, inside.node * n_gpus + inside.b
    n = np.bincount(a[use], minlength=size) + np.bincount(b[use], minlength=size)
    lost = use & slow
    k = np.bincount(a[lost], minlength=size) + np.bincount(b[lost], minlength=size)
    base = max(0.01, float(slow[use].mean()) if slow[use].mean() < 0.1 else 0.02)
    tested = int((n > 0).sum())
    bad = [int(at) for at in np.flatnonzero((n > 1) & (k >= SHARE * n)) if binomial_tail(int(k[at]), int(n[at]), base) * tested <= MAX_CHANCE]
    if n_gpus == 2:
        return []
    found = []
    for at in bad:
        node, gpu = divmod(at, n_gpus)
        mine = lost & ((a == at) | (b == at))
        part = 1 - math.exp(-float(np.median(loss[mine])))
        text = f"GPU {gpu}: -{part:.0%} in {int(k[at])} of {int(n[at])} exchanges with the other GPUs of its node (NVLink or PCIe)"
        chance = binomial_tail(int(k[at]), int(n[at]), base) * tested
        found.append(Suspect(kind="gpu", host=hosts[node], gpu=gpu, score=part, chance=min(1.0, chance), evidence=(text,)))
    return _whole_nodes(found, n_gpus)


def _whole_nodes(suspects: list[Suspect], n_gpus: int) -> list[Suspect]:
    """Where most GPUs of a node are slow, the node is the suspect (its switches, its driver)."""
    hosts: dict[str | None, list[Suspect]] = {}
    for one in suspects:
        hosts.setdefault(one.host, []).append(one)
    found: list[Suspect] = []
    for host, mine in hosts.items():
        if len(mine) >= max(3, SHARE * n_gpus):
            text = f"{len(mine)} of its {n_gpus} GPUs are slow with one another: NVSwitch, fabric manager or driver"
            found.append(
                Suspect(kind="node", host=host, score=max(one.score for one in mine), chance=min(one.chance or 0 for one in mine), evidence=(text,))
            )
        else:
            found += mine
    return found


def slow_alone(alone: Alone, hosts: Sequence[str]) -> list[Suspect]:
    """Devices (or nodes) that are slower than most by more than chance and 5 %, in every repeat."""
    known = np.isfinite(alone.speed) & (alone.speed > 0)
    if known.sum() < 3:
        return []
    width = int(alone.gpu.max(initial=0)) + 2
    keys, at = np.unique(alone.node * width + alone.gpu + 1, return_inverse=True)
    if len(keys) < 3:
        return []
    best = np.full(len(keys), -np.inf)
    np.maximum.at(best, at[known], alone.speed[known])
    median = float(np.median(best[np.isfinite(best)]))
    loss = np.log(median / np.where(best > 0, best, np.nan))
    spread = MAD_TO_SIGMA * float(np.nanmedian(np.abs(loss)))
    limit = max(-math.log1p(-MIN_EFFECT), (SIGMAS + 1) * max(spread, MIN_SPREAD if len(keys) > 8 else 0.0))
    found = []
    for number in np.flatnonzero(loss > limit):
        node, gpu = int(keys[number]) // width, int(keys[number]) % width - 1
        part = 1 - math.exp(-float(loss[number]))
        z = float(loss[number]) / max(spread, MIN_SPREAD)
        chance = min(1.0, 0.5 * math.erfc(z / math.sqrt(2)) * len(keys))
        repeats = int((at == number).sum())
        who = f"GPU {gpu}" if gpu >= 0 else "the node"
        text = f"{alone.what}: {who} reaches {best[number]:.4g}, the median of {len(keys)} is {median:.4g} (-{part:.0%}, the best of {repeats})"
        found.append(
            Suspect(kind="gpu" if gpu >= 0 else "node", host=hosts[node], gpu=gpu if gpu >= 0 else None, score=part, chance=chance, evidence=(text,))
        )
    return found
