"""CFed-VS against its definition: who belongs where, and which models come of it; and what its kin share with it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedreel.config import Recipe, RoundConfig, TrainConfig
from fedreel.core.exchange import Policy
from fedreel.core.federation import Federation
from fedreel.core.ledger import departures
from fedreel.core.update import ASK, EVALUATE, TRAIN, Order
from fedreel.engines.local import LocalEngine
from fedreel.errors import RecipeError, RunError
from fedreel.methods.cfedvs import CFedVS
from fedreel.methods.cluster import adjusted_rand_index, k_means
from fedreel.methods.cyclic import Cyclic
from fedreel.methods.fedavg import FedAvg
from fedreel.methods.fedgroup import FedGroup
from fedreel.methods.ifca import IFCA
from fedreel.runs import run as core
from fedreel.runs.reading import read_metrics
from support.planted import Planted, close, first_of, mean, members, part, trained, watched
from support.toy import Points, Toy, federate, make_worker

# what the federation offers to such methods


def test_a_fresh_model_differs_by_number_and_seed_and_disturbs_no_random_numbers(tmp_path: Path) -> None:
    engine = LocalEngine(make_worker(tmp_path, FedAvg()))
    fed, other = (Federation(engine, FedAvg(), RoundConfig(), seed) for seed in (0, 1))
    torch.manual_seed(5)
    models = [fed.fresh(1), fed.fresh(2), fed.fresh(3), other.fresh(1), fed.weights]
    drawn = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(3))
    assert fed.fresh(2).equal(models[1])
    assert all(a.distance(b) > 0.1 for i, a in enumerate(models) for b in models[:i])
    assert all(m.layout == fed.weights.layout for m in models)


def test_each_client_trains_its_own_of_several_models(tmp_path: Path) -> None:
    engine = LocalEngine(make_worker(tmp_path / "a", FedAvg()))
    fed = Federation(engine, Cyclic(), RoundConfig(), 0)
    fed.progress.round = 1
    own = {c: fed.fresh(i) for i, c in enumerate(("c2", "c0", "c3"))}
    updates = list(fed.train_own(own))
    expected = trained(tmp_path / "b", Toy(), own)
    assert [u.client for u in updates] == ["c2", "c0", "c3"]
    assert all(u.weights.equal(expected[u.client].weights) for u in updates)


def test_a_task_without_public_data_is_told(tmp_path: Path) -> None:
    class Bare(Toy):
        def public(self, data: Any, seed: int) -> Any:
            return None

    with pytest.raises(RunError, match=r"needs public data(.|\n)*data\.public"):
        federate(tmp_path, CFedVS(), task=Bare())


# CFed-VS


def distances(fed: Federation) -> list[float]:
    """d_k of every client, for the one proxy."""
    return [d for (d,) in fed.memory["distance"].values()]


@dataclass(frozen=True)
class TwoProxies(Planted):
    """A second proxy at level 8, so that levels 4 and 12 are alike to it and unlike to the first."""

    def public(self, data: Any, seed: int) -> Points:
        return Points((torch.tensor([[0.0], [8.0]]), torch.zeros(2)))


def test_with_several_proxies_clients_are_apart_by_the_norm_of_their_differences(tmp_path: Path) -> None:
    """|level| and |level - 8| a step, three steps: seen from the first alone, level 4 is nearer to 0 than to 12."""
    task = TwoProxies(levels=(0.0, 3.9, 4.1, 12.0))
    fed, notes = federate(tmp_path / "a", CFedVS(groups=2, proxies=2), task=task, rounds=1)
    found = [x for d in fed.memory["distance"].values() for x in d]
    assert found == pytest.approx([0.0, 24.0, 11.7, 12.3, 12.3, 11.7, 36.0, 12.0], abs=1e-5)
    d = np.array(found).reshape(4, 2)
    rows = [[math.dist(a, b) for b in d] for a in d]
    assert members(fed) == k_means(np.array(rows), 2, fed.seed).tolist()
    (asked,) = notes.of("distance")
    assert asked["distance"] == fed.memory["distance"]
    purposes = [r["purpose"] for r in departures(tmp_path / "a" / "ledger.jsonl")]
    assert purposes.count("distance") == 2 * 4
    card = CFedVS(groups=2, proxies=2).card(fed)["distances"]
    for community, middle in card.items():
        own = d[[c for c, g in enumerate(members(fed)) if f"community-{g}" == community]]
        assert middle == pytest.approx(own.mean(axis=0).tolist())
    with pytest.raises(RecipeError, match="fewer public videos than proxies"):
        federate(tmp_path / "b", CFedVS(proxies=3), task=task, rounds=1)


def test_a_client_that_missed_a_proxy_joins_later_with_all_of_them(tmp_path: Path) -> None:
    task, lost = TwoProxies(levels=(1.0, 1.5, 12.0, 13.0)), []

    def second_of_c3(order: Order) -> bool:
        lost.extend([order] if (order.client, order.kind, order.round) == ("c3", ASK, 1) else [])
        return order.client == "c3" and order.kind == ASK and order.round == 1 and len(lost) > 1

    fed, *_ = watched(tmp_path, CFedVS(groups=2, proxies=2), second_of_c3, task=task, rounds=2)
    assert {len(d) for d in fed.memory["distance"].values()} == {2}
    assert members(fed) == [0, 0, 1, 1]


def test_the_control_by_topics_groups_clients_whose_shares_are_alike(tmp_path: Path) -> None:
    """Distances would put c0 and c1 together; labels say that c0 and c2 belong together."""
    task = Planted(levels=(1.0, 1.1, 30.0, 31.0), only=(0, 1, 0, 1))
    fed, _ = federate(tmp_path, CFedVS(groups=2, grouping="topics"), task=task, rounds=1)
    assert members(fed) == [0, 1, 0, 1]
    sent = [r for r in departures(tmp_path / "ledger.jsonl") if r["purpose"] == "topics"]
    assert [r["kinds"] for r in sent] == [["label-statistics"]] * 4
    assert "distances" not in CFedVS(groups=2, grouping="topics").card(fed)


def test_communities_are_found_from_planted_distances(tmp_path: Path) -> None:
    """d_k = level x steps; here level 7 with 3 steps and level 1 with 21 belong together, as the paper has it."""
    task = Planted(levels=(0.5, 7.0, 0.6, 14.0, 1.0, 0.4, 13.5), steps=(3, 3, 3, 3, 21, 3, 3))
    fed, notes = federate(tmp_path, CFedVS(groups=3), task=task, rounds=1)
    assert distances(fed) == pytest.approx([1.5, 21.0, 1.8, 42.0, 21.0, 1.2, 40.5])
    assert members(fed) == [0, 1, 0, 2, 1, 0, 2]
    (row,) = notes.of("communities")
    assert row["members"]["c3"] == "community-2"
    by_path, _ = federate(tmp_path / "b", CFedVS(groups=3, normalize="path"), task=task, rounds=1)
    assert distances(by_path) == pytest.approx(task.levels, rel=1e-6)
    assert members(by_path) == [0, 1, 0, 2, 0, 0, 2]


def test_how_distances_go_with_the_length_of_videos_is_recorded(tmp_path: Path) -> None:
    """All at level 2: the distance is the length. With equal lengths there is nothing to say."""
    _, notes = federate(tmp_path / "a", CFedVS(), task=Planted(levels=(2.0,) * 4, steps=(3, 9, 4, 7)), rounds=1)
    assert notes.of("distance")[0]["correlation_with_length"] == pytest.approx(1.0)
    _, notes = federate(tmp_path / "b", CFedVS(), task=Planted(), rounds=1)
    assert notes.of("distance")[0]["correlation_with_length"] is None


@pytest.mark.parametrize("seed", range(10))
def test_rows_of_differences_give_the_groups_of_the_numbers_themselves(seed: int) -> None:
    rng = np.random.default_rng(seed)
    planted = rng.permutation(np.repeat(np.arange(3), 4))
    d = np.array([100.0, 160.0, 230.0])[planted] + rng.normal(scale=6.0, size=12)
    rows = k_means(np.abs(d[:, None] - d[None]), 3, seed)
    assert rows.tolist() == k_means(d[:, None], 3, seed).tolist()
    assert adjusted_rand_index(rows, planted) == 1.0


def test_one_derived_number_and_two_counts_leave_a_client_once(tmp_path: Path) -> None:
    fed, notes = federate(tmp_path, CFedVS(groups=2), task=Planted(), rounds=3)
    asked = [r for r in departures(tmp_path / "ledger.jsonl") if r["purpose"] == "distance"]
    assert [r["client"] for r in asked] == list(fed.clients)
    for row, samples in zip(asked, (8, 12, 16, 20)):
        assert row["numbers"] == {
            "distance": pytest.approx(*fed.memory["distance"][row["client"]]),
            "videos": samples,
            "steps": 3 * samples,
        }
        assert (row["kinds"], row["layout"], row["bytes"]) == (["count", "derived-number"], None, 24)
    down = [r["bytes_down"] for r in notes.of("train")]
    assert down == [4 * fed.weights.nbytes + 4 * 4, 4 * fed.weights.nbytes, 4 * fed.weights.nbytes]  # the proxy, once


def test_where_no_derived_number_may_leave_the_run_stops_and_says_so(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="lets no derived-number out"):
        federate(tmp_path, CFedVS(), task=Planted(), policy=Policy(refuse=("derived-number",)))


def test_one_community_that_shares_nothing_is_fedavg(tmp_path: Path) -> None:
    options = {"task": Planted(steps=(2, 9, 4, 3)), "rounds": 3, "fraction": 0.5}
    plain, _ = federate(tmp_path / "a", FedAvg(weight_by="frames"), **options)
    for share in ("none", "all_but_head"):
        fed, _ = federate(tmp_path / share, CFedVS(groups=1, share=share), **options)
        assert fed.models["community-0"].equal(plain.weights)
        assert fed.weights.equal(plain.weights)


def test_frames_weigh_among_those_who_took_part(tmp_path: Path) -> None:
    task = Planted(steps=(2, 9, 4, 3))
    fed, orders, engine = watched(tmp_path / "a", CFedVS(groups=1), task=task, rounds=1, fraction=0.5)
    assert len(orders) == 2
    updates = trained(tmp_path / "b", task, {o.client: engine.blueprint.start for o in orders})
    frames = {"c0": 16.0, "c1": 108.0, "c2": 64.0, "c3": 60.0}
    assert close(fed.models["community-0"], mean(list(updates.values()), lambda u: frames[u.client]))
    assert not close(fed.models["community-0"], mean(list(updates.values()), lambda u: u.samples))


def test_frames_equal_samples_when_all_videos_are_equally_long(tmp_path: Path) -> None:
    ends = [federate(tmp_path / by, CFedVS(groups=2, weight_by=by), task=Planted())[0] for by in ("frames", "samples")]
    for name in ("global", "community-0", "community-1"):
        assert close(ends[0].models[name], {n: t.double() for n, t in ends[1].models[name].items()})
    uneven = Planted(steps=(2, 9, 4, 3))
    ends = [federate(tmp_path / f"{by}-uneven", CFedVS(weight_by=by), task=uneven)[0] for by in ("frames", "samples")]
    assert ends[0].weights.distance(ends[1].weights) > 1e-3


def test_shared_bodies_are_everybodys_mean_and_heads_their_communitys(tmp_path: Path) -> None:
    task = Planted(steps=(2, 9, 4, 3), levels=(1.0, 20.0, 1.5, 40.0))  # distances 2, 180, 6, 120
    fed, _, engine = watched(tmp_path / "a", CFedVS(groups=2), task=task, rounds=1)
    assert members(fed) == [0, 1, 0, 1]
    updates = trained(tmp_path / "b", task, dict.fromkeys(fed.clients, engine.blueprint.start))
    everybody = mean(list(updates.values()), lambda u: u["frames"])
    assert close(fed.weights, everybody)
    for group, clients in enumerate((("c0", "c2"), ("c1", "c3"))):
        model = fed.models[f"community-{group}"]
        own = mean([updates[c] for c in clients], lambda u: u["frames"])
        assert close(model, everybody, "backbone.")
        assert close(model, own, "head.")
        apart, _ = federate(tmp_path / f"c{group}", CFedVS(groups=2, share="none"), task=task, rounds=1)
        assert close(apart.models[f"community-{group}"], own)


@pytest.mark.parametrize("method", [CFedVS, FedGroup, IFCA])
def test_bodies_are_the_same_or_not_and_heads_always_differ(tmp_path: Path, method: Any) -> None:
    task = Planted(flipped=("c1", "c3"))
    for share, same in (("all_but_head", True), ("none", False)):
        fed, _ = federate(tmp_path / share, method(groups=2, share=share), task=task, rounds=3)
        a, b = fed.models["community-0"], fed.models["community-1"]
        assert part(a, "backbone.").equal(part(b, "backbone.")) == same
        assert not part(a, "head.").equal(part(b, "head."))


@pytest.mark.parametrize("share", ["all_but_head", "none"])
def test_a_community_that_nobody_answered_for_keeps_its_head(tmp_path: Path, share: Any) -> None:
    task, method = Planted(levels=(1.0, 1.1, 1.2, 50.0)), CFedVS(groups=2, share=share)
    before, _ = federate(tmp_path / "a", method, task=task, rounds=1)
    assert members(before) == [0, 0, 0, 1]
    after, *_ = watched(
        tmp_path / "b", method, lambda o: (o.round, o.kind, o.client) == (2, TRAIN, "c3"), task=task, rounds=2
    )
    old, new = before.models["community-1"], after.models["community-1"]
    assert part(new, "head.").equal(part(old, "head."))
    assert not after.models["community-0"].equal(before.models["community-0"])
    if share == "none":
        assert new.equal(old)
    else:
        assert part(new, "backbone.").equal(part(after.models["community-0"], "backbone."))


@pytest.mark.parametrize(("level", "community"), [(7.5, 1), (7.0, 0)])
def test_a_newcomer_joins_the_community_with_the_nearest_mean(tmp_path: Path, level: float, community: int) -> None:
    """Communities {1, 4} and {12} with means 2.5 and 12, so the border is at 7.25; the nearest client is at 4."""
    task = Planted(levels=(1.0, 4.0, 12.0, level))
    fed, orders, engine = watched(tmp_path, CFedVS(groups=2), first_of("c3", ASK), task=task, rounds=2)
    assert members(fed) == [0, 0, 1, community]
    assert [o.client for o in engine.of(ASK)] == ["c0", "c1", "c2", "c3", "c3"]  # nobody else is asked again
    assert "c3" in {o.client for o in orders}
    assert distances(fed) == pytest.approx([3.0, 12.0, 36.0, 3 * level])


@pytest.mark.parametrize("method", [CFedVS, FedGroup, IFCA])
def test_a_client_that_never_answers_does_not_stop_the_others(tmp_path: Path, method: Any) -> None:
    fed, *_ = watched(tmp_path, method(groups=2), lambda o: o.client == "c3", task=Planted(), rounds=2)
    assert {*fed.memory["members"]} == {"c0", "c1", "c2"}
    assert fed.round == 2


def test_each_client_tests_the_model_of_its_community(tmp_path: Path) -> None:
    fed, _, engine = watched(tmp_path, CFedVS(groups=2), task=Planted(), rounds=2)
    tested = {o.client: o.models["global"] for o in engine.of(EVALUATE, 2)}
    assert all(tested[c].equal(fed.models[f"community-{g}"]) for c, g in fed.memory["members"].items())


# runs: checkpoints and the card


def full_run(out: Path, name: str, resume: bool = False) -> core.Result:
    recipe = Recipe(
        device="cpu",
        task={"name": "toy"},
        method={"name": name, "groups": 2},
        train=TrainConfig(batch_size=4, lr=0.1),
        round=RoundConfig(rounds=4, fraction=0.5),
    )
    return core.run(recipe, out, resume=resume, quiet=True, task=Toy())


@pytest.mark.parametrize("name", ["cfedvs", "ifca", "fedgroup"])
def test_a_run_that_broke_off_goes_on_with_its_groups(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, out = full_run(tmp_path / "whole", name), tmp_path / "broken"
    submit = LocalEngine.submit

    def breaks(engine: LocalEngine, order: Order) -> None:
        if order.round == 3:
            raise KeyboardInterrupt
        submit(engine, order)

    with monkeypatch.context() as patch:
        patch.setattr(LocalEngine, "submit", breaks)
        with pytest.raises(KeyboardInterrupt):
            full_run(out, name)
    assert full_run(out, name, resume=True).metrics == whole.metrics
    for model in ("global", "community-0", "community-1"):
        a, b = (load_file(folder / "model" / f"{model}.safetensors") for folder in (whole.path, out))
        assert all(torch.equal(a[n], b[n]) for n in a)
    rounds = [r["round"] for r in departures(out / "ledger.jsonl") if r["purpose"] == "distance"]
    assert rounds == ([1] * 4 if name == "cfedvs" else [])  # nobody was asked again


def test_the_card_names_the_communities_and_their_distances(tmp_path: Path) -> None:
    out = full_run(tmp_path / "run", "cfedvs").path
    card = json.loads((out / "model" / "card.json").read_text())
    (found,) = read_metrics(out, "communities")
    (asked,) = read_metrics(out, "distance")
    assert card["models"] == ["community-0", "community-1", "global"]
    assert card["communities"] == found["members"]
    assert [*card["communities"]] == ["c0", "c1", "c2", "c3"]
    for community, distance in card["distances"].items():
        own = [d for c, g in card["communities"].items() if g == community for d in asked["distance"][c]]
        assert distance == pytest.approx([sum(own) / len(own)])
    assert {*card["distances"]} == {"community-0", "community-1"}
