"""Thresholds that would let a broken system through: said before the start, and in the verdict that somebody signs. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from nccl_bench.verdict.criteria import Criteria
from nccl_bench.verdict.rows import Row

LAX = "threshold is lax"
"""How the criterion of such a row begins."""
LEAST_SHARE = 0.75
"""Six of a node's eight NICs carry 0.75 of what all do: a lower share of what is expected passes a node of which two are dead. Of the
healthy results in fabric/expected.json none is below 0.94 of the low end of its kind (a test counts)."""
MOST_APART = 1 - LEAST_SHARE
"""The same for thresholds that say how far apart two values may be."""
_LOW = f"a node with a quarter of its NICs dead reaches {LEAST_SHARE:g} and would pass"
_APART = f"a node with a quarter of its NICs dead is {MOST_APART:g} slower and would pass"


def lax(criteria: Criteria) -> list[tuple[str, str, str, str]]:
    """(what, value, why it is too little, source) of each."""
    shares = [("share of expected", criteria.share)]
    shares += [(f"share of expected, {name}", one) for name, one in criteria.shares.items()]
    shares += [(f"share of expected, {one.collective} of {one.sizes()}", one.share) for one in criteria.ranges]
    found = [(what, f"{one.value:g}", _LOW, one.source) for what, one in shares if one.value < LEAST_SHARE]
    apart = [("spread between like nodes", criteria.spread), ("repeats agree within", criteria.agree)]
    apart += [("slower than the baseline", criteria.baseline)]
    found += [(what, f"{one.value:g}", _APART, one.source) for what, one in apart if one.value > MOST_APART]
    said = criteria.path or ""
    if "fail" not in criteria.doctor_fail and "fail" in criteria.doctor_warn:
        found.append(("doctor: fails on", ", ".join(criteria.doctor_fail) or "nothing", "what doctor finds broken only warns", said))
    if criteria.counters == "ignore":
        found.append(("counters of errors", "ignore", "links that lose packets are not seen", said))
    if criteria.transport == "ignore" and not criteria.rdma_required:
        found.append(("RDMA there and not used", "ignore", "traffic over sockets would pass", said))
    return found


def rows(criteria: Criteria) -> Iterable[Row]:
    """A warning for each: the certificate carries it."""
    for what, value, why, source in lax(criteria):
        yield Row(criterion=f"{LAX}: {what}", stage="criteria", status="warn", measured=value, reason=why, source=source)


def words(criteria: Criteria) -> list[str]:
    """The same for a screen, before anything is measured."""
    return [f"{what} = {value} ({source}): {why}; the verdict will say so" for what, value, why, source in lax(criteria)]
