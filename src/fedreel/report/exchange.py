"""The two doors: which updates the server refused, and what left the clients."""

from __future__ import annotations

from collections import Counter

from fedreel.machine.words import size
from fedreel.report.markup import Html, count, el, finite, natural, number, quantity, short, table
from fedreel.report.run import Ledger, Run

MOST_REFUSALS, MOST_LAYOUTS, MOST_TENSORS, MOST_CLIENTS = 300, 12, 200, 200
MEANING = {
    "error": "the client failed and said so",
    "diverged": "the client's training diverged",
    "memory": "there was too little memory",
    "timeout": "no answer in time",
    "not-finite": "a tensor or number held NaN or infinity",
    "names": "tensor names other than the expected ones",
    "shape": "a tensor of another shape",
    "dtype": "a tensor of another type",
    "norm": "an update too large to be plausible",
    "stale": "an answer for another round",
    "duplicate": "a second answer to one order",
    "policy": "the site's own policy forbids it",
    "range": "a number outside its range",
    "offline": "the site was away for too long",
    "rubbish": "the site's answer could not be read",
}


def refusals(run: Run) -> Html:
    """Counts by reason and client, then every case; or a plain statement that there was none."""
    if not run.refused:
        return _none_listed(run)
    cases, by_reason = run.cases, Counter[str]()
    for (_, reason), times in cases.items():
        by_reason[reason] += times
    clients = sorted({client for client, _ in cases}, key=natural)
    reasons = [reason for reason, _ in by_reason.most_common()]
    summary = table(
        ["reason", "meaning", "times", "clients"],
        [
            [reason, MEANING.get(reason, ""), by_reason[reason], sum((c, reason) in cases for c in clients)]
            for reason in reasons
        ],
        caption="Refusals by reason",
    )
    matrix = table(
        ["client", *reasons],
        [
            [short(c), *[quantity(cases[c, r], number(cases[c, r]) if cases[c, r] else "·") for r in reasons]]
            for c in clients[:MOST_CLIENTS]
        ],
        caption="Refusals by client and reason",
        class_="sortable",
    )
    listed = table(
        ["round", "client", "reason", "detail"],
        [
            [str(r["round"]), short(r["client"]), r["reason"], short(r["detail"], 300)]
            for r in run.refused[:MOST_REFUSALS]
        ],
        caption="Every refusal",
        class_="sortable wordy",
    )
    hidden = run.refused.seen - MOST_REFUSALS
    more = el("p", f"The first {MOST_REFUSALS} are listed; {hidden} more are in metrics.jsonl.", class_="hint")
    total = f"{count(run.refused.seen, 'update')} of {count(len(clients), 'client')} did not enter the model."
    return el(
        "div",
        el("p", total, class_="lead"),
        el("div", summary, matrix, class_="pair"),
        el("h3", "Case by case"),
        listed,
        more if hidden > 0 else None,
    )


def departures(run: Run) -> Html:
    """Totals by purpose, then the tensors of every layout that travelled."""
    ledger = run.ledger
    if ledger is None and run.sites:
        said = "What left a site is in that site's own ledger, which its owner reads: "
        return el("p", said, el("code", "fedreel ledger SITE-FOLDER"), class_="lead")
    if ledger is None:
        return el("p", "ledger.jsonl is missing: this directory does not say what left the clients.", class_="empty")
    if not ledger.purposes:
        return el("p", "The ledger is empty: nothing has left a client.", class_="empty")
    rows: list[list[object]] = [
        [
            purpose,
            flow.count,
            len(flow.clients),
            quantity(flow.bytes, size(flow.bytes)),
            _names(flow.kinds),
            _names(flow.numbers),
            _layouts(flow.layouts),
        ]
        for purpose, flow in sorted(ledger.purposes.items())
    ]
    totals = table(
        ["purpose", "departures", "clients", "bytes", "kinds", "numbers", "tensor layouts"],
        rows,
        caption="What left the clients, by purpose",
        class_="wordy",
    )
    used = sorted({*ledger.layouts, *ledger.by_layout}, key=lambda name: -_layout_bytes(ledger, name))
    hidden = len(used) - MOST_LAYOUTS
    return el(
        "div",
        totals,
        [_layout(ledger, name, first=i == 0) for i, name in enumerate(used[:MOST_LAYOUTS])],
        el("p", f"{hidden} smaller layouts are not listed.", class_="hint") if hidden > 0 else None,
    )


def _none_listed(run: Run) -> Html:
    counted = run.summary.get("refused")
    counts = {str(k): int(finite(n) or 0) for k, n in counted.items()} if isinstance(counted, dict) else {}
    if any(counts.values()):
        said = ", ".join(f"{reason} {n}" for reason, n in counts.items() if n)
        return el("p", f"The summary counts refusals ({said}), but metrics.jsonl does not list them.", class_="lead")
    if not run.has_metrics:
        return el("p", "metrics.jsonl is missing: whether anything was refused is unknown.", class_="empty")
    so_far = "" if run.complete else " so far"
    return el("p", f"Nothing was refused{so_far}: every update that arrived entered the model.", class_="lead good")


def _layout(ledger: Ledger, name: str, *, first: bool) -> Html:
    tensors, flow = ledger.layouts.get(name), ledger.by_layout.get(name)
    times = f"left {count(flow.count, 'time')}, {size(flow.bytes)} in all" if flow else "never left"
    label = el("code", short(name, 16))
    if tensors is None:
        return el("p", "Layout ", label, f" {times}, but the ledger does not describe it.", class_="hint")
    each = sum(_tensor_bytes(t) for t in tensors)
    rows: list[list[object]] = [
        [
            el("th", el("code", short(_text(t, 0), 120)), scope="row"),
            _shape(t),
            _text(t, 2),
            quantity(_tensor_bytes(t), size(_tensor_bytes(t))),
        ]
        for t in tensors[:MOST_TENSORS]
    ]
    rest = tensors[MOST_TENSORS:]
    if rest:
        weight = sum(_tensor_bytes(t) for t in rest)
        rows.append([f"{len(rest)} more tensors", "", "", quantity(weight, size(weight))])
    summary = el("summary", "Layout ", label, f": {count(len(tensors), 'tensor')}, {size(each)} each; {times}")
    listed = table(
        ["tensor", "shape", "type", "bytes"],
        rows,
        caption=f"Tensors of layout {short(name, 16)}",
        class_="sortable",
    )
    return el("details", summary, listed, open=first and len(tensors) <= 16)


def _names(names: set[str]) -> Html:
    return el("span", ", ".join(short(name, 40) for name in sorted(names)[:40]) or "none")


def _layouts(names: set[str]) -> Html:
    shown = [el("code", short(name, 16), " ") for name in sorted(names)[:4]]
    return el("span", shown or "none", f"and {len(names) - 4} more" if len(names) > 4 else None)


def _layout_bytes(ledger: Ledger, name: str) -> float:
    return ledger.by_layout[name].bytes if name in ledger.by_layout else 0.0


def _tensor_bytes(tensor: list[object]) -> float:
    return (finite(tensor[3]) or 0.0) if len(tensor) > 3 else 0.0


def _text(tensor: list[object], i: int) -> str:
    return str(tensor[i]) if len(tensor) > i else ""


def _shape(tensor: list[object]) -> str:
    shape = tensor[1] if len(tensor) > 1 else []
    return " × ".join(map(str, shape)) or "scalar" if isinstance(shape, list) else str(shape)
