"""A cluster that exists in numbers only: what its pairs, nodes and GPUs would measure, with noise, and with seeded faults.

Assumptions, all stated here:
  fabric    1 NIC a GPU, 4 or 8 rails, each node's rail r on switch r of its leaf; leaves of 8 to 32 nodes; 2 to 8 spines, chosen by a hash of
            (src, dst, rail); crossing exchanges reach 1/oversubscription (1 or 2) of the inside ones, and small messages take 1.2 µs more
  noise     each exchange: log-normal with Student's t of 3 degrees of freedom (heavy tails), of a standard deviation of 0.5 to 2 % that is a
            cluster's own; each node 0.4 %, each port 0.4 %, each rail 0.2 %; one exchange in 200 is 5-40 % slower for no reason; small messages
            4 %, and one in 50 takes 1.1 to 3 times as long
  in common what is measured at the same time is disturbed at the same time: in one node-round of 400 a node's ports are all 5-40 % slower (in
            all sizes and directions of the round), in one leaf-round of 100 all that crosses a leaf's way out is 5-25 % slower, and in one round
            of 50 everything is 2-10 % slower
  means     of an exchange's batches lie 0-2 % below its median speed; one exchange in 60 stalls (a mean 5 to 60 % lower). Half of the lossy
            links show in the mean alone, as timeouts do: three exchanges of four stall, the median says nothing
  GPUs      chips differ by 1.2 % in GEMM, nodes (their air) by 0.6 %
  a rate    is the slowest of: sender's port, path, receiver's port; both directions at once end with the slower one
  screens   all pairs up to 32 nodes, 8 rounds and 5 inside the leaves beyond; then, as pairs and accept do, suspects once more: with other
            partners, with one another, and alone; up to 8 nodes everything once more
  stated    whoever runs it says what the fabric is oversubscribed by
  counters  can be read in 9 of 10 clusters; which NIC carries a rail is proven in 9 of 10; groups are known in half, and always where
            a spine is slow (nobody can name a place that has no name) and where the fabric is oversubscribed
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from nccl_bench.flows.pairs import confirming
from nccl_bench.measure.schedule import INSIDE_ROUNDS, inside_rounds, partner, screen_rounds
from nccl_bench.verdict.evidence import (
    LARGE_BOTH,
    LARGE_ONE,
    SMALL_BOTH,
    SMALL_ONE,
    Alone,
    Evidence,
    Exchanges,
    Findings,
    Groups,
    Inside,
    Mark,
    Suspect,
)
from nccl_bench.verdict.localise import localise

KINDS = (
    "slow NIC", "slow NVLink", "slow GPU", "flapping link", "lossy link", "slow spine", "one direction", "thermal throttle",
    "PCIe x8", "mis-cabled rail",
)  # fmt: skip
FULL_UP_TO, SCREEN = 32, 8
NIC_GBps, NVLINK_GBps, SMALL_US, GEMM_TFLOPS, NODE_GBps = 48.0, 380.0, 6.0, 700.0, 475.0
STRATA = (LARGE_BOTH, LARGE_ONE, SMALL_BOTH, SMALL_ONE)


@dataclass(frozen=True)
class Fault:
    kind: str
    node: int = -1
    device: int = -1
    """Rail or GPU."""
    other: int = -1
    """The second rail of a mis-cabled pair; the leaf, or -1 for one spine of several."""
    effect: float = 0.0
    sends: bool = True


@dataclass
class Cluster:
    n: int
    rails: int
    leaf: int
    spines: int
    oversubscription: float
    groups_known: bool
    counters: bool
    proven: bool
    faults: list[Fault]
    rng: np.random.Generator
    node_factor: np.ndarray = field(init=False)
    rail_factor: np.ndarray = field(init=False)
    send: np.ndarray = field(init=False)
    receive: np.ndarray = field(init=False)
    shaky: np.ndarray = field(init=False)
    losing: np.ndarray = field(init=False)
    late_us: np.ndarray = field(init=False)
    stalling: np.ndarray = field(init=False)
    port_factor: np.ndarray = field(init=False)
    sigma: float = field(init=False)

    def __post_init__(self) -> None:
        self.sigma = float(self.rng.uniform(0.005, 0.02))
        self.node_factor = np.exp(self.rng.normal(0, 0.004, self.n))
        self.port_factor = np.exp(self.rng.normal(0, 0.004, (self.n, self.rails)))
        self.rail_factor = np.exp(self.rng.normal(0, 0.002, self.rails))
        shape = (self.n, self.rails)
        self.send, self.receive = np.ones(shape), np.ones(shape)
        self.shaky, self.losing, self.late_us, self.stalling = np.zeros(shape), np.zeros(shape), np.zeros(shape), np.zeros(shape)
        for fault in self.faults:
            self._apply(fault)

    def _apply(self, fault: Fault) -> None:
        at, keep = (fault.node, fault.device), 1 - fault.effect
        match fault.kind:
            case "slow NIC" | "PCIe x8":
                self.send[at] *= keep
                self.receive[at] *= keep
            case "one direction":
                (self.send if fault.sends else self.receive)[at] *= keep
            case "flapping link":
                self.shaky[at] = fault.effect
            case "lossy link":
                (self.stalling if fault.sends else self.losing)[at] = fault.effect
            case "mis-cabled rail":
                for rail in (fault.device, fault.other):
                    self.send[fault.node, rail] *= keep
                    self.receive[fault.node, rail] *= keep
                    self.late_us[fault.node, rail] = 1.2

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(f"n{at:04d}" for at in range(self.n))

    def leaf_of(self, node: np.ndarray) -> np.ndarray:
        return node // self.leaf

    def nic(self, rail: int) -> str:
        return f"mlx5_{rail}"

    # ---- measuring

    def exchange(self, pairs: list[tuple[int, int]]) -> Exchanges:
        """Every pair on every rail: large and small, both at once, and each direction alone."""
        a, b = np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs])
        src, dst, rail, stratum, speed, mean = [], [], [], [], [], []
        every_rail = np.tile(np.arange(self.rails), len(pairs))
        common, number = np.repeat(self._common(pairs), self.rails), np.repeat(_rounds(pairs), self.rails)
        a, b = np.repeat(a, self.rails), np.repeat(b, self.rails)
        for kind in STRATA:
            for here, there in ((a, b),) if kind in (LARGE_BOTH, SMALL_BOTH) else ((a, b), (b, a)):
                src.append(here)
                dst.append(there)
                rail.append(every_rail)
                stratum.append(np.full(len(here), kind))
                speed.append(self._speed(here, there, every_rail, kind) * common)
                mean.append(speed[-1] * self._stalls(here, there, every_rail))
        return Exchanges(
            src=np.concatenate(src), dst=np.concatenate(dst), rail=np.concatenate(rail), stratum=np.concatenate(stratum), speed=np.concatenate(speed),
            n_rails=self.rails, mean=np.concatenate(mean), round=np.tile(number, len(src)),
        )  # fmt: skip

    def _common(self, pairs: list[tuple[int, int]]) -> np.ndarray:
        """[pair] what disturbs several at once, in the rounds that disjoint pairs in a row make."""
        a, b, number = np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs]), _rounds(pairs)
        n_leaves = self.n // self.leaf + 1
        nodes = self._hiccup((number[-1] + 1, self.n), 1 / 400, 0.6, 0.95)
        leaves = self._hiccup((number[-1] + 1, n_leaves), 1 / 100, 0.75, 0.95)
        whole = self._hiccup((number[-1] + 1,), 1 / 50, 0.9, 0.98)
        across = self.leaf_of(a) != self.leaf_of(b)
        out = np.minimum(leaves[number, self.leaf_of(a)], leaves[number, self.leaf_of(b)])
        found: np.ndarray = np.minimum(nodes[number, a], nodes[number, b]) * np.where(across, out, 1.0) * whole[number]
        return found

    def _stalls(self, a: np.ndarray, b: np.ndarray, rail: np.ndarray) -> np.ndarray:
        """Mean speed over median speed."""
        ratio = np.exp(-np.abs(self.rng.normal(0, 0.01, len(a)))) * self._hiccup(len(a), 1 / 60, 0.4, 0.95)
        for end in (a, b):
            hit = self.rng.random(len(a)) < 0.75 * (self.stalling[end, rail] > 0)
            ratio = np.where(hit, ratio * np.clip(1 - self.stalling[end, rail] / 0.75 * np.exp(self.rng.normal(0, 0.4, len(a))), 0.02, 1), ratio)
        return ratio

    def _speed(self, a: np.ndarray, b: np.ndarray, rail: np.ndarray, kind: int) -> np.ndarray:
        if kind in (SMALL_BOTH, SMALL_ONE):
            return 1 / self._small_us(a, b, rail)
        one = self._way(a, b, rail)
        rate = one if kind == LARGE_ONE else np.minimum(one, self._way(b, a, rail))
        rate = rate * NIC_GBps * self.node_factor[a] * self.node_factor[b] * self.rail_factor[rail]
        rate = rate * np.minimum(self.port_factor[a, rail], self.port_factor[b, rail])
        for end in (a, b):
            hit = self.rng.random(len(a)) < self.shaky[end, rail]
            rate = np.where(hit, rate * (1 - self.rng.uniform(0.3, 0.9, len(a))), rate)
            lost = self.losing[end, rail]
            rate = rate * np.clip(1 - lost * np.exp(self.rng.normal(0, 0.25, len(a))), 0.02, 1)
        return rate * np.exp(self.sigma * self.rng.standard_t(3, len(a)) / np.sqrt(3)) * self._hiccup(len(a), 0.005, 0.6, 0.95)

    def _way(self, a: np.ndarray, b: np.ndarray, rail: np.ndarray) -> np.ndarray:
        path = np.ones(len(a))
        across = self.leaf_of(a) != self.leaf_of(b)
        path[across] /= self.oversubscription
        spine = _mixed(a * 4096 * 8 + b * 8 + rail) % self.spines
        for fault in self.faults:
            if fault.kind == "slow spine":
                hit = across & ((self.leaf_of(a) == fault.other) | (self.leaf_of(b) == fault.other) if fault.other >= 0 else spine == fault.device)
                path[hit] *= 1 - fault.effect
        return np.minimum(np.minimum(self.send[a, rail], path), self.receive[b, rail])

    def _small_us(self, a: np.ndarray, b: np.ndarray, rail: np.ndarray) -> np.ndarray:
        us = SMALL_US + 1.2 * (self.leaf_of(a) != self.leaf_of(b)) + self.late_us[a, rail] + self.late_us[b, rail]
        return us * np.exp(self.rng.normal(0, 0.04, len(a))) / self._hiccup(len(a), 0.02, 1 / 3, 0.9)

    def _hiccup(self, n: int | tuple[int, ...], often: float, low: float, high: float) -> np.ndarray:
        return np.where(self.rng.random(n) < often, self.rng.uniform(low, high, n), 1.0)

    def inside(self) -> Inside:
        pairs = [(i, j) for i in range(self.rails) for j in range(i + 1, self.rails)]
        a, b = (np.tile([p[at] for p in pairs], self.n) for at in (0, 1))
        node = np.repeat(np.arange(self.n), len(pairs))
        keep = np.ones((self.n, self.rails))
        for fault in self.faults:
            if fault.kind in ("slow NVLink", "slow GPU"):
                keep[fault.node, fault.device] *= 1 - fault.effect * (1.0 if fault.kind == "slow NVLink" else 0.5)
        rows = []
        for kind in (LARGE_BOTH, LARGE_ONE):
            noise = np.exp(0.006 * self.rng.standard_t(4, len(a)) / np.sqrt(2)) * self._hiccup(len(a), 0.003, 0.7, 0.95)
            rows.append((np.minimum(keep[node, a], keep[node, b]) * NVLINK_GBps * noise, np.full(len(a), kind)))
        return Inside(
            node=np.tile(node, 2),
            a=np.tile(a, 2),
            b=np.tile(b, 2),
            speed=np.concatenate([r[0] for r in rows]),
            stratum=np.concatenate([r[1] for r in rows]),
        )

    def alone(self) -> tuple[Alone, ...]:
        node, gpu = np.repeat(np.arange(self.n), self.rails), np.tile(np.arange(self.rails), self.n)
        gemm, total = np.ones((self.n, self.rails)), np.ones(self.n)
        for fault in self.faults:
            if fault.kind in ("slow GPU", "thermal throttle"):
                gemm[fault.node, fault.device] *= 1 - fault.effect
            weight = {"slow NVLink": 0.9, "slow GPU": 0.5, "thermal throttle": 0.3}.get(fault.kind)
            if weight:
                total[fault.node] *= 1 - weight * fault.effect
        chips = np.exp(self.rng.normal(0, 0.012, len(node)) + np.repeat(self.rng.normal(0, 0.006, self.n), self.rails))
        repeats = [
            gemm[node, gpu] * chips * GEMM_TFLOPS * np.exp(self.rng.normal(0, 0.004, len(node))) * self._hiccup(len(node), 0.005, 0.8, 0.95)
            for _ in range(3)
        ]
        totals = [total * NODE_GBps * np.exp(self.rng.normal(0, 0.006, self.n)) * self._hiccup(self.n, 0.005, 0.8, 0.95) for _ in range(3)]
        return (
            Alone(what="bf16 GEMM, TFLOPS", node=np.tile(node, 3), gpu=np.tile(gpu, 3), speed=np.concatenate(repeats)),
            Alone(
                what="all_reduce inside the node, GB/s", node=np.tile(np.arange(self.n), 3), gpu=np.full(3 * self.n, -1), speed=np.concatenate(totals)
            ),
        )

    def marks(self) -> tuple[Mark, ...]:
        if not self.counters:
            return ()
        found = []
        for fault in self.faults:
            host, nic = f"n{fault.node:04d}", self.nic(fault.device)
            match fault.kind:
                case "flapping link":
                    found.append(Mark(kind="nic", host=host, nic=nic, text="link_downed +3 during pairs"))
                case "lossy link" if not fault.sends:
                    found.append(Mark(kind="nic", host=host, nic=nic, text="symbol_error +5120 during pairs (others: 0-2)"))
                case "PCIe x8":
                    found.append(Mark(kind="nic", host=host, nic=nic, text="PCIe width x8 (x16 on the others)"))
                case "thermal throttle":
                    found.append(Mark(kind="gpu", host=host, gpu=fault.device, text="throttled under load: hw_thermal_slowdown", blames=False))
        return tuple(found)

    # ---- judging

    def evidence(self, exchanges: Exchanges, inside: Inside, alone: tuple[Alone, ...]) -> Evidence:
        groups = None
        if self.groups_known and self.n > self.leaf:
            groups = Groups(of=tuple(f"leaf{at // self.leaf}" for at in range(self.n)), source="Slurm's topology")
        nics = {(host, rail): self.nic(rail) for host in self.hosts for rail in range(self.rails)} if self.proven else {}
        return Evidence(
            hosts=self.hosts,
            exchanges=exchanges,
            inside=inside,
            alone=alone,
            marks=self.marks(),
            groups=groups,
            nic_of=nics,
            oversubscription=self.oversubscription,
        )

    def judge(self) -> Findings:
        """Screen, judge, measure what would confirm, judge again."""
        exchanges, inside, alone = self.exchange(self.pairs()), self.inside(), self.alone()
        evidence = self.evidence(exchanges, inside, alone)
        findings = localise(evidence)
        more = list(confirming(evidence, findings))
        if not more:
            return (
                localise(self.evidence(exchanges, inside, tuple(merged(*both) for both in zip(alone, self.alone(), strict=True))))
                if findings.suspects
                else findings
            )
        again = self.exchange(more)
        return localise(self.evidence(joined(exchanges, again), inside, tuple(merged(*both) for both in zip(alone, self.alone(), strict=True))))

    def pairs(self) -> list[tuple[int, int]]:
        n_rounds = self.n - 1 + self.n % 2
        rounds = range(n_rounds) if self.n <= FULL_UP_TO else screen_rounds(self.n, SCREEN)
        found = [(a, b) for number in rounds for a in range(self.n) if (b := partner(self.n, number, a)) is not None and a < b]
        if self.n > FULL_UP_TO and self.groups_known:
            leaves = [range(at, min(at + self.leaf, self.n)) for at in range(0, self.n, self.leaf)]
            found += [pair for one in inside_rounds(leaves, INSIDE_ROUNDS, 0) for pair in one.pairs]
        return list(dict.fromkeys(found))


def _rounds(pairs: list[tuple[int, int]]) -> np.ndarray:
    """[pair] the round it belongs to: one ends where a node would be in it twice."""
    number, busy, found = 0, set[int](), []
    for a, b in pairs:
        if a in busy or b in busy:
            number, busy = number + 1, set()
        busy |= {a, b}
        found.append(number)
    return np.array(found)


def _mixed(key: np.ndarray) -> np.ndarray:
    """A hash without pattern, as switches' ECMP means to be (the finaliser of splitmix64)."""
    key = key.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (key ^ (key >> np.uint64(31))).astype(np.int64) & 0x7FFFFFFF


def joined(one: Exchanges, other: Exchanges) -> Exchanges:
    columns = {name: np.concatenate((getattr(one, name), getattr(other, name))) for name in ("src", "dst", "rail", "speed", "stratum", "mean")}
    assert one.round is not None
    assert other.round is not None
    return Exchanges(**columns, round=np.concatenate((one.round, other.round + one.round.max() + 1)), n_rails=one.n_rails)


def merged(one: Alone, other: Alone) -> Alone:
    columns = {name: np.concatenate((getattr(one, name), getattr(other, name))) for name in ("node", "gpu", "speed")}
    return Alone(what=one.what, **columns)


def make(seed: int, n: int | None = None, kinds: tuple[str, ...] | None = None) -> Cluster:
    """A random cluster; `kinds`: exactly these faults, else 0 to 5 of any."""
    rng = np.random.default_rng(seed)
    n = n or int(8 * 2 ** rng.integers(0, 10))
    rails = int(rng.choice([4, 8]))
    leaf = int(rng.choice([8, 16, 32]))
    chosen = kinds if kinds is not None else tuple(rng.choice(KINDS, size=int(rng.integers(0, 6))))
    if n <= 2 * leaf:
        leaf = max(4, n // 4)
    spine = "slow spine" in chosen
    spines, faults, used = int(rng.choice([2, 4, 8])), list[Fault](), set[tuple[int, int]]()
    for kind in chosen:
        if kind == "slow spine":
            whole = bool(rng.integers(0, 2))
            if not any(fault.kind == kind for fault in faults):
                faults.append(
                    Fault(kind, device=int(rng.integers(0, spines)), other=int(rng.integers(0, n // leaf)) if whole else -1, effect=effect(rng))
                )
            continue
        node, device = int(rng.integers(0, n)), int(rng.integers(0, rails))
        other = (device + int(rng.integers(1, rails))) % rails
        if {(node, device), (node, other)} & used or sum(known[0] == node for known in used) > 1:
            continue
        used |= {(node, device), (node, other)} if kind == "mis-cabled rail" else {(node, device)}
        size = 0.5 if kind == "PCIe x8" else float(rng.uniform(0.35, 0.8)) if kind == "flapping link" else effect(rng)
        faults.append(Fault(kind, node, device, other, size, bool(rng.integers(0, 2))))
    ratio = float(rng.choice([1.0, 1.0, 2.0]))
    return Cluster(
        n=n, rails=rails, leaf=leaf, spines=spines, oversubscription=ratio, groups_known=bool(spine or ratio > 1 or rng.random() < 0.55),
        counters=rng.random() < 0.9, proven=rng.random() < 0.9, faults=faults, rng=rng,
    )  # fmt: skip


def effect(rng: np.random.Generator) -> float:
    """10 to 60 %, small ones as often as large ones."""
    return float(np.exp(rng.uniform(np.log(0.10), np.log(0.6))))


def is_of(suspect: Suspect, fault: Fault, cluster: Cluster) -> bool:
    """Whether a suspect names this fault: the right kind at the right place."""
    host = f"n{fault.node:04d}"
    if fault.kind == "slow spine":
        if suspect.kind != "boundary":
            return False
        return fault.other < 0 or suspect.host in ("between groups", f"leaf{fault.other}") or cluster.n // cluster.leaf == 2
    if fault.kind in ("slow NVLink", "slow GPU", "thermal throttle"):
        return (suspect.kind, suspect.host, suspect.gpu) == ("gpu", host, fault.device)
    rails = (fault.device, fault.other) if fault.kind == "mis-cabled rail" else (fault.device,)
    right = (suspect.host == host) and any(
        (suspect.kind == "nic" and suspect.nic == cluster.nic(r)) or (suspect.kind == "rank" and suspect.gpu == r) for r in rails
    )
    if right and fault.kind == "one direction":
        return any(("sending" if fault.sends else "receiving") in text for text in suspect.evidence)
    return right
