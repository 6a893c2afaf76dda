"""Claims of papers: judged seed by seed, and all on one page from stored tables."""

from __future__ import annotations

import json
import math
from collections import Counter
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from fedreel.errors import DataError
from fedreel.reproduce import fedlid, fedlid_paper, fedvssl
from fedreel.reproduce.claims import ENOUGH, in_words, interval, judged, seeds_to_tell, t_quantile
from fedreel.reproduce.claims_page import page
from fedreel.reproduce.fsar import TABLES
from fedreel.reproduce.of_papers import NOT_STORED, PAPERS
from fedreel.reproduce.spec import Claim
from fedreel.systems import systems
from support.tiny import cli


def row(
    method: str, *values: float | None, setting: Any = None, paper: float | None = None, metric: str = "f1"
) -> dict[str, Any]:
    return {
        "method": method,
        "setting": setting or {},
        "metrics": {metric: numbers(*values)},
        "paper": {} if paper is None else {metric: paper},
    }


def numbers(*values: float | None) -> dict[str, Any]:
    known = [v for v in values if v is not None]
    sd = stdev(known) if len(known) > 1 else None
    return {"mean": fmean(known) if known else None, "sd": sd, "n": len(known), "values": [*values]}


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 30, 200])
def test_the_quantile_is_students(freedom: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    assert math.isclose(t_quantile(freedom), stats.t.ppf(0.975, freedom), rel_tol=1e-6)


def test_the_interval_is_the_t_tests() -> None:
    stats = pytest.importorskip("scipy.stats")
    values = [1.0, 2.5, -0.5, 3.0]
    wanted = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert interval(values) == pytest.approx((wanted.low, wanted.high), rel=1e-6)


def test_differences_are_taken_seed_by_seed() -> None:
    """Rows that move together from seed to seed by far more than they differ."""
    rows = [row("new", 11.0, 21.1, 30.9, 41.0, paper=60.0), row("old", 10.0, 20.0, 30.0, 40.0, paper=50.0)]
    (claim,) = judged((Claim("new", "old", "f1"),), rows)
    assert claim["verdict"] == "holds"
    assert claim["ahead"] == pytest.approx(1.0)
    assert claim["paper"] == {"": [60.0, 50.0]}
    assert claim["seeds"] == 4
    assert in_words(claim).startswith("paper: new better than old")
    (turned,) = judged((Claim("old", "new", "f1", ours=True),), rows)
    assert in_words(turned).startswith("ours: old better than new")
    assert turned["verdict"] == "does not hold"
    (less,) = judged((Claim("old", "new", "f1", higher=False),), rows)
    assert less["verdict"] == "holds"
    assert "holds here, 25 against 26, ahead by 1 (95 %: +0.87 to +1.13), seeds: 4" in in_words(less)


def test_nothing_is_called_with_too_few_seeds_or_a_doubtful_difference() -> None:
    rows = [row("new", 11.0, 21.1, 30.9, None), row("old", 10.0, 20.0, 30.0, 40.0)]
    (few,) = judged((Claim("new", "old", "f1"),), rows)
    assert (few["verdict"], few["seeds"], few["would_tell"]) == ("cannot be told", ENOUGH - 1, ENOUGH)
    rows = [row("new", 11.0, 19.0, 32.0, 40.0), row("old", 10.0, 20.0, 30.0, 40.0)]
    (doubtful,) = judged((Claim("new", "old", "f1"),), rows)
    assert doubtful["verdict"] == "cannot be told"
    n = doubtful["would_tell"]
    differences = [1.0, -1.0, 2.0, 0.0]
    assert n == seeds_to_tell(differences)
    half = [t_quantile(k - 1) * stdev(differences) / math.sqrt(k) for k in (n - 1, n)]
    assert half[0] >= fmean(differences) > half[1]


def test_nothing_is_said_of_a_setting_without_both_rows() -> None:
    rows = [row("new", 1.0, setting={"split": 1}), row("old", None, setting={"split": 1}), row("old", 1.0)]
    assert judged((Claim("new", "old", "f1"),), rows) == []
    rows = [row("new", 1.0, None), row("old", None, 1.0)]  # no seed in common
    assert judged((Claim("new", "old", "f1"),), rows) == []


def test_two_settings_of_a_method_are_compared_where_all_else_is_the_same() -> None:
    rows = [
        row("FedAvg", 5.0, 6.0, 7.0, 8.0, setting={"split": "IID", "init": "random"}, paper=50.0),
        row("FedAvg", 1.0, 2.1, 2.9, 4.0, setting={"split": "one class", "init": "random"}, paper=40.0),
        row("FedAvg", 9.0, 9.0, 9.0, 9.0, setting={"split": "one class", "init": "ImageNet"}),
        row("FedAvg", 0.0, 0.0, 0.0, 0.0, setting={"split": "two classes", "init": "random"}),
    ]
    (claim,) = judged((Claim("FedAvg", "FedAvg", "f1", settings=({"split": "IID"}, {"split": "one class"})),), rows)
    assert (claim["verdict"], claim["paper"]) == ("holds", {"": [50.0, 40.0]})
    assert claim["ahead"] == pytest.approx(4.0)
    assert (claim["setting"], claim["settings"]) == ({"init": "random"}, [{"split": "IID"}, {"split": "one class"}])
    wanted = "paper: FedAvg (split IID) better than FedAvg (split one class) in f1 (init random): holds here, 6.5"
    assert in_words(claim).startswith(wanted)


def test_a_claim_can_be_made_of_some_settings_only() -> None:
    """FedVSSL's Table 1 has FedAvg ahead with two pretexts and behind with the third."""
    rows = [
        row(name, value, setting={"pretext": pretext}, metric="r1")
        for pretext in ("VCOP", "Speed", "CtP")
        for name, value in (("FedAvg", 1.0), ("centralised", 2.0))
    ]
    found = judged(fedvssl.TABLES["table1"].claims, rows)
    said = {(c["better"], c["setting"].get("pretext")) for c in found if c["better"] != c["worse"]}
    assert said == {("centralised", "VCOP"), ("FedAvg", "Speed"), ("FedAvg", "CtP")}
    assert in_words(found[0]).startswith("paper: FedAvg better than centralised in r1 (pretext Speed)")


def test_two_metrics_of_one_row_are_compared_seed_by_seed() -> None:
    metrics = {"head spread": numbers(1.1, 2.0, 3.1, 4.1), "backbone spread": numbers(1.0, 2.0, 3.0, 4.0)}
    rows = [{"method": "FedAvg", "setting": {}, "metrics": metrics, "paper": {}}]
    (claim,) = judged(fedvssl.TABLES["fig5"].claims, rows)
    assert claim["ahead"] == pytest.approx(0.075)
    assert claim["verdict"] == "cannot be told"  # 0.075 +- 3.18 * 0.05 / 2
    assert in_words(claim).startswith("paper: FedAvg: head spread above backbone spread: cannot be told here, 2.58")
    metrics["head spread"] = numbers(0.9, 1.8, 2.9, 3.9)
    (claim,) = judged(fedvssl.TABLES["fig5"].claims, rows)
    assert claim["verdict"] == "does not hold"
    del metrics["backbone spread"]
    assert judged(fedvssl.TABLES["fig5"].claims, rows) == []


def test_two_rows_can_be_compared_by_two_metrics_in_two_settings() -> None:
    """FedLID prints its clients' accuracy beside probes of FedCA with another network and fewer clients."""
    theirs = {"split": "Dirichlet 1, 5 clients", "init": "random, ResNet-50"}
    ours = {"split": "Dirichlet 1", "init": fedlid_paper.LITE0}
    rows = [
        row("FedLID", 47.0, 48.0, 47.5, 47.2, setting=ours, paper=47.52, metric="trained"),
        row("FedCA", 39.0, 39.5, 40.0, 39.2, setting=theirs, paper=39.47, metric="probe"),
    ]
    (claim,) = judged(fedlid.TABLES["table2"].claims, rows)
    assert (claim["verdict"], claim["paper"]) == ("holds", {"": [47.52, 39.47]})
    assert in_words(claim).startswith(
        "paper: trained of FedLID (split Dirichlet 1, init ImageNet, EfficientNet-Lite0) above"
        " probe of FedCA (split Dirichlet 1, 5 clients, init random, ResNet-50): holds here"
    )


def test_rows_of_two_tables_are_compared_seed_by_seed() -> None:
    """FedLID's clients have more labels in Table 1 than in Table 5, all else being the same."""
    ours, other = ({"split": split, "init": "random"} for split in (fedlid_paper.IID, fedlid_paper.NON_IID))
    many = [row("FedLID", 26.0, 27.0, 26.5, 26.2, setting=ours, paper=47.52, metric="trained")]
    few = [
        row("FedLID", 11.0, 12.1, 11.4, 11.2, setting=ours, paper=33.51, metric="trained"),
        row("FedLID", 10.0, 10.0, 10.0, 10.0, setting=other, metric="trained"),
    ]
    claims = fedlid.TABLES["table1"].claims
    (claim,) = judged(claims, many, {"table5": few})
    assert (claim["verdict"], claim["paper"], claim["seeds"]) == ("holds", {"": [47.52, 33.51]}, 4)
    assert claim["ahead"] == pytest.approx(15.0)
    assert claim["setting"] == ours
    assert in_words(claim).startswith("paper: FedLID better than FedLID of table5 in trained (split Dirichlet 1")
    assert judged(claims, many) == judged(claims, many, {"table3": few}) == []


def test_the_page_compares_tables_that_were_run_on_the_same_data_with_the_same_settings(tmp_path: Path) -> None:
    setting = {"split": fedlid_paper.NON_IID, "init": "random"}
    commands = {
        "table3": "fedreel reproduce fedlid table3 --scale small --data images --rows 'FedLID | once'",
        "table5": "fedreel reproduce fedlid table5 --scale small --data images",
        "table5-wide": "fedreel reproduce fedlid table5 --scale small --data images --set task.backbone.width=64",
    }
    for (name, command), values in zip(
        commands.items(), ((26.0, 27.0, 26.5, 26.2), (11.0, 12.1, 11.4, 11.2), (1,) * 4)
    ):
        rows = [row("FedLID", *values, setting=setting, metric="trained")]
        content = {"system": "FedLID", "table": name.partition("-")[0], "scale": "small", "data": "images"}
        (tmp_path / f"{name}.json").write_text(json.dumps({**content, "command": command, "rows": rows}))
    found = [line for line in page(tmp_path).splitlines() if "of table" in line and line.endswith("[2] |")]
    assert found == [
        "| FedLID better than FedLID of table5 in trained (split Dirichlet 0.5, init random) | 48.88 / 24.12 | 26.4 ±"
        " 0.4 / 11.4 ± 0.5 | images, small | 4 | +15 (+14.9 to +15.1) | **holds** | table3 [1], table5 [2] |"
    ]
    assert f"1. `{commands['table3']}`\n2. `{commands['table5']}`" in page(tmp_path)


def test_rows_whose_runs_are_the_same_are_said_to_be_equal(tmp_path: Path) -> None:
    """As FedU's are FedAvg's where its threshold replaces every head; more seeds would not tell them apart."""
    rows = [row(name, 1.0, 2.0, 1.5, 3.0, metric="r5") for name in ("FedAvg", "FedU")]
    command = "fedreel reproduce fedvssl table3 --scale small --data videos"
    content = {"system": "FedVSSL", "table": "table3", "scale": "small", "data": "videos"}
    (tmp_path / "table3.json").write_text(json.dumps({**content, "command": command, "rows": rows}))
    (line,) = (line for line in page(tmp_path).splitlines() if line.startswith("| FedU better than FedAvg in r5"))
    assert line.endswith("| +0 (+0 to +0) | cannot be told; equal in every seed | table3 [1] |")


def test_the_page_counts_the_papers_claims_on_each_data(tmp_path: Path) -> None:
    """Of Table 4, where the paper has six settings of FedVSSL ahead of FedAvg; not of runs changed to find a cause."""
    command = "fedreel reproduce fedvssl table4 --scale small --data"
    values = {
        "FedAvg": (1.0, 1.1, 0.9, 1.0),
        "FedVSSL 0, 0": (2.0, 2.1, 1.9, 2.0),
        "FedVSSL 0, 1": (0.5, 0.6, 0.4, 0.5),
    }
    rows = [row(name, *own, metric="r1") for name, own in values.items()]
    more = [*rows, row("FedVSSL 1, 0", 0.0, 1.0, 2.0, 1.5, metric="r1")]
    for name, data, own, over in (
        ("a", "videos", rows, ""),
        ("b", "films", more, ""),
        ("c", "videos", rows, " --set train.epochs=5"),
    ):
        content = {"system": "FedVSSL", "table": "table4", "scale": "small", "data": data, "rows": own}
        (tmp_path / f"{name}.json").write_text(json.dumps({**content, "command": f"{command} {data}{over}"}))
    overview = page(tmp_path).split("\n## ")[0].splitlines()[-4:]
    table4 = [claim for claim in fedvssl.TABLES["table4"].claims if not claim.ours]
    assert overview[0] == "| system | data, scale | holds | does not hold | cannot be told |"
    for line, own, where in ((overview[2], rows, "videos"), (overview[3], more, "films")):
        counts = Counter(claim["verdict"] for claim in judged(table4, own))
        assert min(counts["holds"], counts["does not hold"]) > 0
        wanted = " | ".join(str(counts[v]) for v in ("holds", "does not hold", "cannot be told"))
        assert line == f"| [FedVSSL](#fedvssl) | {where}, small | {wanted} |"


@pytest.mark.parametrize(
    ("system", "of_set", "least"),
    [("fedlid", "", 45), ("fedvmr", "", 24), ("fsar", "", 30), ("fedvssl", "/ucf101", 90), ("fedvssl", "/hmdb51", 90)],
)
def test_claims_go_the_way_of_the_printed_numbers(system: str, of_set: str, least: int, tmp_path: Path) -> None:
    """Of every two rows of which the paper prints them, on each of its sets; but for FedVSSL's R@1 on HMDB-51 in Table
    4: the paper says of all rows that they are ahead."""
    for name in ("clients", "server"):
        (tmp_path / name).mkdir()
    tables = import_module(f"fedreel.reproduce.{system}").TABLES
    printed = {}
    for name, table in tables.items():
        rows = table.rows_for(tmp_path if system == "fedlid" else None) if name.startswith("table") else ()
        printed[name] = [
            {
                "method": r.name,
                "setting": r.setting,
                "metrics": {m.removesuffix(of_set): numbers(v) for m, v in r.paper.items() if m.endswith(of_set)},
                "paper": {},
            }
            for r in rows
        ]
    said = [(n, c) for n, t in tables.items() for c in judged([c for c in t.claims if not c.ours], printed[n], printed)]
    for name, claim in said:
        excepted = (name, claim["metric"], claim["worse"], of_set) == ("table4", "r1", "FedAvg", "/hmdb51")
        assert excepted or claim["ahead"] > 0, (name, in_words(claim))
    assert len(said) >= least


def test_every_claim_names_rows_settings_and_metrics_that_its_table_has() -> None:
    """A name that no row has would never be judged, and nobody would know."""
    for system in systems():
        tables = import_module(system.tables).TABLES if system.tables else {}
        for name, table in tables.items():
            for claim in table.claims:
                both = table, tables[claim.second or name]
                for metric, its in zip(claim.metrics, both):
                    assert any(fnmatch(metric, wanted) for wanted in its.metrics), (system.name, name, claim)
                for row_name, said, its in zip((claim.better, claim.worse), claim.settings, both):
                    rows = [] if callable(its.rows) else its.rows
                    known = any(r.name == row_name and said.items() <= r.setting.items() for r in rows)
                    assert known or not rows, (system.name, name, claim)


def stored(folder: Path, name: str = "table1", command: str = "fedreel reproduce fsar table1 --data sets") -> None:
    network = {"network": "ST-GCN"}
    rows = [
        row("FSAR", 11.0, 21.1, 30.9, 41.0, setting=network, paper=60.0, metric="top1_clients"),
        row("vanilla", 10.0, 20.0, 30.0, 40.0, setting=network, paper=50.0, metric="top1_clients"),
    ]
    content = {"system": "FSAR", "table": name, "scale": "small", "data": "sets", "command": command, "rows": rows}
    (folder / f"{name}.json").write_text(json.dumps(content))


def test_the_page_has_a_row_for_every_claim_and_the_command(tmp_path: Path) -> None:
    stored(tmp_path, "fig7", "fedreel reproduce fsar fig7 --data sets")  # which has no claim of these two rows
    left = unanswered(page(tmp_path))
    assert "| FSAR better than FSAR without MKD in unsteady ↓ | – | fig7 |" in left
    assert "| FSAR better than vanilla in top1_clients (network ST-GCN) | 81.15 / 72.68 | table1 |" in left
    stored(tmp_path)
    text = page(tmp_path)
    assert (
        "| FSAR better than vanilla in top1_clients (network ST-GCN) | 60 / 50 | 26.0 ± 12.9 / 25.0 ± 12.9 | sets,"
        " small | 4 | +1 (+0.87 to +1.13) | **holds** | table1 [1] |" in text
    )
    assert "1. `fedreel reproduce fsar table1 --data sets`" in text
    assert set(left) - set(unanswered(text)) == {
        "| FSAR better than vanilla in top1_clients (network ST-GCN) | 81.15 / 72.68 | table1 |"
    }
    assert "| FSAR better than vanilla in top1_clients (network MS-G3D) | 81.68 / 73.3 | table1 |" in unanswered(text)
    done = cli("reproduce", "--claims", str(tmp_path))
    assert (done.code, done.out) == (0, text)


def unanswered(text: str) -> list[str]:
    """FSAR's claims that are said not to be run."""
    of_system = text.split("\n## FSAR\n")[1].split("\n## ")[0]
    return of_system.split("Not run on ")[1].split("\n\n")[1].splitlines()[2:]


def test_every_claim_of_a_table_is_a_row_answered_or_not(tmp_path: Path) -> None:
    stored(tmp_path)
    rows = page(tmp_path).splitlines()
    for claim in TABLES["table1"].claims + TABLES["fig10"].claims:
        better, worse = (
            " ".join((name, *(f"({key} {value})" for key, value in said.items())))
            for name, said in zip((claim.better, claim.worse), claim.settings)
        )
        assert any(row.startswith(f"| {better} better than {worse} in {claim.metric}") for row in rows), claim


def test_the_papers_numbers_of_each_of_its_sets_are_shown() -> None:
    """FedVSSL's paper prints two sets, of which ours has other ones; FedLID's began with other weights than ours."""
    (first, second) = (
        {**row(name, 1.0, 2.0, 3.0, 4.0, metric="r1"), "paper": dict(zip(("r1/ucf101", "r1/hmdb51", "r5/ucf101"), own))}
        for name, own in (("FedVSSL 0, 0", (34.34, 15.82, 51.71)), ("FedAvg", (32.62, 16.54, 50.41)))
    )
    (claim,) = judged((Claim("FedVSSL 0, 0", "FedAvg", "r1"),), [first, second])
    assert claim["paper"] == {"ucf101": [34.34, 32.62], "hmdb51": [15.82, 16.54]}
    own = Claim("FedVSSL 0, 0", "FedAvg", "r1", printed=(2.0, 1.0))
    (claim,) = judged((own,), [first, second])
    assert claim["paper"] == {"": [2.0, 1.0]}
    (claim,) = judged((own,), [row("FedVSSL 0, 0", 2.0, metric="r1"), row("FedAvg", 1.0, metric="r1")])
    assert claim["paper"] == {"": [2.0, 1.0]}
    bare = Claim("FedVSSL 0, 0", "FedAvg", "r1")
    (claim,) = judged((bare,), [row("FedVSSL 0, 0", 2.0, metric="r1"), row("FedAvg", 1.0, metric="r1")])
    assert claim["paper"] == {}


def test_a_claims_metric_may_be_a_pattern() -> None:
    """Fig. 4 keeps models by sixths of the rounds, after 13 of 40 on the playground and 90 of 270 on given data."""
    for kept in ("r1 after  32 %", "r1 after  33 %"):
        metrics = {kept: numbers(3.0, 4.0), "r1 after  18 %": numbers(0.0, 0.0), "r1": numbers(5.0, 6.0)}
        rows = [{"method": name, "setting": {}, "metrics": metrics, "paper": {}} for name in ("FedAvg", "centralised")]
        (claim,) = judged(fedvssl.TABLES["fig4"].claims, rows)
        assert (claim["metric"], claim["than"], claim["ahead"]) == (kept, "r1", -2.0)


def test_a_stored_table_that_is_no_more_is_told(tmp_path: Path) -> None:
    stored(tmp_path, "tabel1")
    with pytest.raises(DataError, match="there is no such table any more") as caught:
        page(tmp_path)
    assert "table1" in caught.value.hint


def test_every_table_and_figure_of_the_papers_is_listed_with_where_it_was_run(tmp_path: Path) -> None:
    stored(tmp_path)
    text = page(tmp_path)
    for paper in PAPERS:
        declared = next(system for system in systems() if system.name == paper.system)
        assert declared.title == paper.title
        assert f"\n## {paper.title}\n" in text
        tables = import_module(declared.tables).TABLES
        assert sorted(e.name for e in paper.exhibits) == sorted(n for n in tables if n.startswith(("table", "fig")))
        for exhibit in paper.exhibits:
            run = "sets, small" if (paper.system, exhibit.name) == ("fsar", "table1") else NOT_STORED
            assert f"| {paper.title} | {exhibit.name} | {exhibit.shows} | {run} |" in text


def test_a_table_whose_rows_answer_no_claim_of_it_does_not_count_as_run(tmp_path: Path) -> None:
    """FedLID's Table 2 compares with methods that may not have been run yet."""
    rows = [row("FedLID", 1.0, 2.0, setting={"split": fedlid_paper.IID, "init": "random"}, metric="trained")]
    content = {"system": "FedLID", "scale": "small", "data": "images", "rows": rows}
    for name in ("table2", "fig3"):
        command = f"fedreel reproduce fedlid {name} --scale small --data images"
        (tmp_path / f"{name}.json").write_text(json.dumps({**content, "table": name, "command": command}))
    listed = {line.split(" | ")[1]: line for line in page(tmp_path).splitlines() if line.startswith("| FedLID | ")}
    assert f" | {NOT_STORED} | " in listed["table2"]
    assert " | images, small | " in listed["fig3"]  # of which the paper claims nothing that two numbers could tell


def test_what_is_no_stored_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there are no stored tables"):
        page(tmp_path)
    (tmp_path / "x.json").write_text("[1]")
    with pytest.raises(DataError, match="this is not a stored table") as caught:
        page(tmp_path)
    assert caught.value.where.endswith("x.json")


def test_nothing_to_reproduce_is_said() -> None:
    done = cli("reproduce")
    assert done.code == 2
    assert "there is nothing to reproduce" in done.err
    assert "fsar" in done.err


def test_how_many_seeds_would_tell_is_the_first_that_would() -> None:
    """Found by halves, it is what counting up finds."""
    for values in ([1.0, -1.0, 2.0, 0.0], [0.1, 0.2, 0.15, 0.1], [3.0, -2.0], [5.0, 5.1, -4.0, 2.0, 1.0]):
        told = (t_quantile(n - 1) * stdev(values) / math.sqrt(n) < abs(fmean(values)) for n in range(ENOUGH, 400))
        first = next(n for n, enough in zip(range(ENOUGH, 400), told) if enough and n >= len(values))
        assert seeds_to_tell(values) == first
    assert seeds_to_tell([1.0, -1.0, 1.0, -0.99]) is None  # more than are worth saying
