"""The network bandwidth that a row's interconnect text states, per accelerator and direction.

The text is read clause by clause; clauses about links inside the node say nothing here.  Bits are
meant unless the unit has a capital B ("GB/s"), and a rate without a scope is one NIC's.
"""

from __future__ import annotations

import re

_GBIT = 1e9 / 8
# Gb/s of one NIC by what it is called, where no rate is printed (vendors' product names).
_GENERATIONS = (
    (r"hdr-?100", 100), (r"ndr-?200", 200), (r"xdr|connectx-?8|cx-?8", 800),
    (r"ndr|quantum-?2|connectx-?7|cx-?7|bluefield-?3", 400),
    (r"hdr|quantum|connectx-?6|cx-?6|slingshot", 200),
    (r"edr|connectx-?5|cx-?5|omni-?path|opa|slingshot-?10", 100), (r"fdr", 56),
)  # fmt: skip
# "HDR/NDR": either of two generations states no rate.
_EITHER = re.compile(r"\b[fehnx]dr ?/ ?[fehnx]dr\b", re.IGNORECASE)
_INSIDE = r"nv-?link\d*|nv-?switch\d*|pcie|pci-e|xgmi|infinity fabric|intra|hccs|\bici\b|neuronlink"
_OUTSIDE = (
    r"infiniband|\bib\b|roce|rdma|ethernet|gbe\b|\befa\b|\bnics?\b|inter-?node|per node|per gpu|"
    r"omni-?path|slingshot|connectx|\bcx-?\d|bluefield|[hnxef]dr\b|[hn]dr\d|quantum|spectrum|"
    r"node-?(?:to-?)?node|/node|/gpu|tcpx|gpudirect"
)
# A rate of links inside the node, wherever it stands: "NVLink 900GB/s", "PCIe 4.0 x16".
_INSIDE_RATE = re.compile(
    rf"(?:{_INSIDE})[^;,+]*?[\d.]+ ?(?:[GTgt]B/s|[GTgt]B\b|[gt]bps|[gt]b/s)|"
    r"pci-?e ?(?:gen ?)?[\d.]*(?: ?x ?\d+)?",
    re.IGNORECASE,
)
_RATE = re.compile(
    r"(?:(?P<count>\d+) ?[x×*] ?(?P<between>[a-z][a-z0-9 \-]*? )?)?"
    r"(?P<value>\d+(?:\.\d+)?) ?(?P<unit>[gt]b/s|[gt]bps|[gt]bit/s|[gt]bits/s|gbe|[gt]\b|[gt]b\b)?",
    re.IGNORECASE,
)
_PER_NODE = re.compile(
    r"per (?:node|server|host|instance|machine)|/ ?(?:node|server|host)|node-?(?:to-?)?node|"
    r"aggregate|\btotal\b|\befa\b"
)
_PER_RANK = re.compile(r"(?:per|/|each|every) ?(?:gpu|accelerator|rank|device|chip|npu|gcd|xpu)")
_NUMBERED = re.compile(
    r"connectx-?\d|cx-?\d|bluefield-?\d|quantum-?\d|slingshot-?\d+|roce ?v\d|(?:hdr|ndr)-?\d+|"
    r"nv-?link ?\d|efa ?v\d",
    re.IGNORECASE,
)
_COUNTS = {"single": 1, "one": 1, "dual": 2, "two": 2, "quad": 4, "four": 4, "eight": 8}
_MAX_TEXT = 500
# Faster than any NIC: the rate of all of a node's.
_FASTEST_NIC = 800
# So slow beside eight accelerators that the node has only one such NIC.
_ONE_PER_NODE = 100


def nic_bytes_per_s(text: str, per_node: int) -> float | None:
    """NIC bandwidth per accelerator and direction, bytes/s; None where none is stated."""
    text = text[:_MAX_TEXT]
    for clause in re.split(r"[;,+|()]| and | with ", _INSIDE_RATE.sub(" ", text)):
        low = clause.lower()
        if re.search(_INSIDE, low) and not re.search(_OUTSIDE, low):
            continue
        if _EITHER.search(clause):
            return None
        rate = _rate(clause)
        if rate is None:
            continue
        gbit, count = rate
        # The scope may stand in a clause of its own: "8x 200 Gb/s HDR (per node)".
        if _PER_RANK.search(low):
            return gbit * (count or 1) * _GBIT
        if count is not None or _PER_NODE.search(low) or gbit > _FASTEST_NIC:
            return gbit * (count or 1) * _GBIT / per_node
        if _PER_NODE.search(text.lower()) or gbit <= _ONE_PER_NODE:
            return gbit * _GBIT / per_node
        return gbit * _GBIT
    return None


def _gbit_of(unit: str) -> int:
    """Gb/s in one Tb/s, GB/s and so on."""
    return (1000 if unit[0:1] in ("t", "T") else 1) * (8 if unit[1:2] == "B" else 1)


def _rate(clause: str) -> tuple[float, int | None] | None:
    """(Gb/s of one NIC or of the sum, number of NICs where stated) of one clause."""
    rails = re.search(
        r"\b(single|one|dual|two|quad|four|eight|\d+)[- ](?:rail|nic)", clause.lower()
    )
    count = None
    if rails:
        count = _COUNTS.get(rails.group(1)) or int(rails.group(1))
    for match in _RATE.finditer(_names_removed(clause)):
        unit, value = match.group("unit") or "", float(match.group("value"))
        many = int(match.group("count")) if match.group("count") else count
        # A bare number is a rate only behind a count of NICs: "8x ConnectX-7 400", "4x200".
        if not unit and (match.group("count") is None or value < 10):
            continue
        if value:
            return value * _gbit_of(unit), many
    for pattern, gbit in _GENERATIONS:
        if named := re.search(rf"(?:(\d+) ?[x×*] ?)?\b(?:{pattern})\b", clause.lower()):
            return float(gbit), int(named.group(1)) if named.group(1) else count
    return None


def _names_removed(clause: str) -> str:
    """Product names end in numbers that are no rates."""
    return _NUMBERED.sub(lambda match: re.sub(r"\d", "", match.group(0)), clause)
