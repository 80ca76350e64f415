"""How often the right one is blamed, on synthetic clusters of 8 to 4,096 nodes (tests/synthetic.py says what is assumed of them).

python benchmarks/blame.py                     the whole table: minutes
python benchmarks/blame.py --faults 60 --clean 100 --most-nodes 256
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import synthetic


def main() -> None:
    """Print the table; exit 1 where a bar is missed."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--faults", type=int, default=300, help="at least so many of each kind")
    options.add_argument("--clean", type=int, default=600, help="clusters without a fault")
    options.add_argument("--most-nodes", type=int, default=4096)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--show", action="store_true", help="every miss and every false blame")
    args = options.parse_args()
    seeded, found, blamed, right = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    seed, started = args.seed, time.monotonic()
    while min(seeded[kind] for kind in synthetic.KINDS) < args.faults:
        seed += 1
        cluster = synthetic.make(seed)
        if cluster.n <= args.most_nodes and cluster.faults:
            _one(cluster, seed, (seeded, found, blamed, right), args.show)
    false, slowest = 0, 0.0
    for number in range(args.clean):
        cluster = synthetic.make(10_000_000 + args.seed + number, kinds=())
        if cluster.n > args.most_nodes:
            cluster = synthetic.make(10_000_000 + args.seed + number, n=args.most_nodes, kinds=())
        findings = cluster.judge()
        false += bool(findings.suspects)
        if findings.suspects and args.show:
            print("clean blamed", number, cluster.n, findings.suspects[:3])
    slowest = _largest(args.most_nodes)
    print(f"{'fault':<18}{'seeded':>8}{'found':>8}{'recall':>9}")
    for kind in synthetic.KINDS:
        print(f"{kind:<18}{seeded[kind]:>8}{found[kind]:>8}{found[kind] / seeded[kind]:>9.4f}")
    recall, precision = found.total() / seeded.total(), right.total() / max(1, blamed.total())
    print(f"{'pooled':<18}{seeded.total():>8}{found.total():>8}{recall:>9.4f}")
    for kind in sorted(blamed):
        print(f"  blamed as {kind:<10}{blamed[kind]:>6}, right {right[kind]:>6}, precision {right[kind] / blamed[kind]:.4f}")
    print(f"precision {precision:.4f} ({right.total()} of {blamed.total()} suspects) · clean clusters blamed {false} of {args.clean}")
    print(f"{args.most_nodes} nodes analysed in {slowest:.1f} s of one core · {time.monotonic() - started:.0f} s in all")
    each = min(found[kind] / seeded[kind] for kind in synthetic.KINDS)
    sys.exit(not (recall >= 0.99 and precision >= 0.99 and each >= 0.95 and false * 600 <= args.clean and slowest <= 5))


def _one(cluster: synthetic.Cluster, seed: int, counters: tuple[Counter[str], ...], show: bool) -> None:
    seeded, found, blamed, right = counters
    suspects = cluster.judge().suspects
    for fault in cluster.faults:
        seeded[fault.kind] += 1
        hit = any(synthetic.is_of(one, fault, cluster) for one in suspects)
        found[fault.kind] += hit
        if show and not hit:
            print("missed", seed, cluster.n, cluster.rails, fault, [one.name() for one in suspects])
    for one in suspects:
        blamed[one.kind] += 1
        hit = any(synthetic.is_of(one, fault, cluster) for fault in cluster.faults)
        right[one.kind] += hit
        if show and not hit:
            print("wrong", seed, cluster.n, cluster.leaf, one, cluster.faults)


def _largest(n: int) -> float:
    """Seconds of processor time to judge the screen of the largest cluster, five faults in it: others may be using the machine."""
    cluster = synthetic.make(5, n=n, kinds=synthetic.KINDS[:5])
    evidence = cluster.evidence(cluster.exchange(cluster.pairs()), cluster.inside(), cluster.alone())
    started = time.process_time()
    synthetic.localise(evidence)
    return time.process_time() - started


if __name__ == "__main__":
    main()
