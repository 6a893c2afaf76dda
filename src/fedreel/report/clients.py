"""The clients: who took part, what each holds, and how well the model serves each of them."""

from __future__ import annotations

from collections import Counter

import numpy as np

from fedreel.machine.words import size
from fedreel.report.grid import heat_map, states
from fedreel.report.markup import Html, count, el, finite, number, quantity, score, short, table
from fedreel.report.run import Run

MOST_ROWS = 1000
WORDS = ["did not take part", "trained", "refused"]


def client_table(run: Run) -> Html:
    """One row per client: last metrics, items, times trained and refused, bytes sent."""
    clients = run.clients
    if not clients:
        return el("p", "No client has been seen yet.", class_="empty")
    last = {name: {str(k): v for k, v in values.items()} for name, values in run.last_tests.items()}
    metrics = list(dict.fromkeys(name for values in last.values() for name in values if name != "n"))
    trained, refused = run.times_trained, Counter[str]()
    for (name, _), times in run.cases.items():
        refused[name] += times
    sent = run.ledger.client_bytes if run.ledger else {}
    items = {name: sum(counts) for name, counts in run.partition.get("train", {}).items()}
    tops = {name: max((abs(finite(v.get(name)) or 0.0) for v in last.values()), default=0.0) for name in metrics}

    rows: list[list[object]] = []
    for name in clients[:MOST_ROWS]:
        values = last.get(name, {})
        row: list[object] = [
            el("th", short(name), scope="row", title=name if len(name) > 60 else None, data_v=name[:99])
        ]
        row += [_bar(finite(values.get(metric)), tops[metric]) for metric in metrics]
        row += [_plain(finite(values.get("n"))), _plain(items.get(name)), trained[name]]
        row.append(
            el(
                "td",
                number(refused[name]),
                class_="num alert" if refused[name] else "num",
                data_v=refused[name],
            )
        )
        row.append(quantity(sent.get(name), size(sent.get(name))))
        rows.append(row)
    head: list[object] = [
        "client",
        *metrics,
        "tested on",
        "trains on",
        "times trained",
        "times refused",
        "bytes sent",
    ]
    hidden = len(clients) - len(rows)
    return el(
        "div",
        table(head, rows, caption="Clients, with their last metrics", class_="sortable"),
        el("p", f"{hidden} more clients are not listed, to keep this page small.", class_="hint") if hidden else None,
    )


def participation(run: Run) -> Html | None:
    """Clients by rounds: who trained, whose update was refused. Of long runs only rounds that are kept, and of refusals
    only if all are known."""
    refused = run.refused if run.refused.seen == len(run.refused) else []
    extra = {r["round"] for r in refused} if run.train.span == 1 else set()
    clients, rounds = run.clients[:MOST_ROWS], sorted({*run.train, *extra})
    if not clients or not rounds or not any(record["clients"] for record in run.train.values()):
        return None
    row = {name: i for i, name in enumerate(clients)}
    column = {r: i for i, r in enumerate(rounds)}
    cells = np.zeros((len(clients), len(rounds)), dtype=np.int64)
    for r, record in run.train.items():
        for name in record["clients"]:
            if name in row:
                cells[row[name], column[r]] = 1
    for record in refused:
        if record["client"] in row and record["round"] in column:
            cells[row[record["client"]], column[record["round"]]] = 2
    shown = states("Who took part, round by round", clients, [f"round {r}" for r in rounds], cells, WORDS)
    if run.train.span == 1:
        return shown
    left = "" if refused or not run.refused else " Refusals are too many to be shown here."
    return el("div", shown, el("p", f"One round in {run.train.span} is shown.{left}", class_="hint"))


def partition(run: Run) -> Html:
    """How the data are divided: items per client and class."""
    train, test = (run.partition.get(side, {}) for side in ("train", "test"))
    if run.sites:
        said = "The data are at real sites, which reveal only the names of their clients."
        rows: list[list[object]] = [[short(s), len(c), short(", ".join(c), 200)] for s, c in run.sites.items()]
        return el("div", el("p", said, class_="lead"), table(["site", "clients", "names"], rows, caption="Sites"))
    if not train and not test:
        return el("p", "The partition was not recorded.", class_="empty")
    clients = [name for name in run.clients if name in train or name in test]
    width = max(len(counts) for side in (train, test) for counts in side.values())
    classes = run.partition["classes"][:width]
    classes += [f"class {k}" for k in range(len(classes), width)]
    sides = [(name, _matrix(side, clients, width)) for name, side in (("training", train), ("test", test)) if side]
    if not width:
        return el("p", "The partition was recorded without classes.", class_="empty")
    maps = [heat_map(f"{name.capitalize()} items by client and class", clients, classes, m) for name, m in sides]
    more = el("details", el("summary", "The same for the test items"), maps[1]) if len(maps) > 1 else None
    told = run.partition["clients"]
    some = el("p", f"These are {len(clients):,} of {told:,} clients, evenly chosen.", class_="lead") if told else None
    return el("div", some, el("p", _spread(*sides[0]), class_="lead"), maps[0], more)


def _bar(value: float | None, top: float) -> Html:
    share = max(0.0, value / top) if value is not None and top else 0.0
    return quantity(value, score(value), style=f"--share:{share:.0%}" if share else None)


def _plain(value: float | None) -> Html:
    return quantity(value, number(value))


def _matrix(side: dict[str, list[int]], clients: list[str], width: int) -> np.ndarray:
    rows = [(counts := side.get(name, [])) + [0] * (width - len(counts)) for name in clients]
    return np.array(rows, dtype=np.int64).reshape(len(clients), width)


def _spread(name: str, counts: np.ndarray) -> str:
    """The partition in a sentence."""
    held, kinds = counts.sum(axis=1), (counts > 0).sum(axis=1)
    total = f"{count(len(counts), 'client')}, {int(held.sum()):,} {name} items, {counts.shape[1]:,} classes. "
    each = f"A client holds {held.min():,} to {held.max():,} items (median {number(float(np.median(held)))})"
    return f"{total}{each} of {kinds.min()} to {kinds.max()} classes."
