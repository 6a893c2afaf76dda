"""FedLID and what it is compared with: what the server's training changes, what it leaves, and what is noted."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch.nn import functional as F

from fedreel.config import TrainConfig, load_recipe
from fedreel.core.job import make_method
from fedreel.core.task import Outputs
from fedreel.core.terms import Step
from fedreel.errors import RecipeError
from fedreel.methods.fedavg import FedAvg
from fedreel.methods.fedca import FedCA, alignment, more_negatives
from fedreel.methods.fedlid import FedLID
from fedreel.tasks.vision.nt_xent import nt_xent
from support.toy import Toy, ToyNet, federate


def test_the_server_changes_the_backbone_and_leaves_the_classifier_to_the_bit(tmp_path: Path) -> None:
    fed, _ = federate(tmp_path, FedLID(), rounds=2)
    before, after = fed.models["averaged"], fed.weights
    changed = {name for name in after if not torch.equal(before[name], after[name])}
    assert {"backbone.0.weight", "backbone.1.weight", "backbone.1.running_mean"} <= changed
    assert all(name.startswith("backbone.") for name in changed)


def test_without_a_server_phase_it_is_fedavg_to_the_bit(tmp_path: Path) -> None:
    lid, _ = federate(tmp_path / "lid", FedLID(server="none"))
    avg, _ = federate(tmp_path / "avg", FedAvg())
    assert lid.weights.equal(avg.weights)


def test_clients_never_hold_the_servers_head(tmp_path: Path) -> None:
    fed, notes = federate(tmp_path, FedLID(), rounds=1)
    kept = fed.memory["server-head/views"]
    assert {*kept} == {"head.weight", "head.bias"}
    again, _ = federate(tmp_path / "again", FedLID(), rounds=2)
    assert not again.memory["server-head/views"].equal(kept), "it goes on learning"
    assert [r["what"] for r in notes.of("server")] == ["views"]


def test_the_servers_head_goes_on_from_round_to_round_unless_it_starts_afresh(tmp_path: Path) -> None:
    frozen = TrainConfig(batch_size=4, lr=0.0)
    ends = {}
    for keep in (True, False):
        fed, _ = federate(tmp_path / f"{keep}", FedLID(keep_projector=keep), train=frozen, rounds=2)
        ends[keep] = fed.memory["server-head/views"]
    assert ends[True].equal(ends[False]), "nothing is learned at a rate of 0, so both are the first head"
    runs = {keep: federate(tmp_path / f"m{keep}", FedLID(keep_projector=keep), rounds=2)[0] for keep in (True, False)}
    assert not runs[True].memory["server-head/views"].equal(runs[False].memory["server-head/views"])


def test_once_means_before_the_first_round_only(tmp_path: Path) -> None:
    _, notes = federate(tmp_path, FedLID(when="once"), rounds=3)
    assert [r["round"] for r in notes.of("server")] == [1]
    _, notes = federate(tmp_path / "each", FedLID(), rounds=3)
    assert [r["round"] for r in notes.of("server")] == [1, 2, 3]


def test_every_tested_round_notes_three_accuracies_and_the_headline_is_the_mean_over_clients(tmp_path: Path) -> None:
    _, notes = federate(tmp_path, FedLID(), rounds=2)
    for phase in ("trained", "averaged", "test"):
        assert [r["round"] for r in notes.of(phase)] == [1, 2], phase
    for row in notes.of("trained"):
        each = [numbers["trained_top1"] for numbers in row["clients"].values()]
        assert len(each) == 4
        assert row["metrics"]["top1"] == pytest.approx(sum(each) / 4)


def test_trained_clients_are_tested_in_the_rounds_that_are(tmp_path: Path) -> None:
    runs = {every: federate(tmp_path / f"{every}", FedLID(), rounds=3, evaluate_every=every) for every in (0, 1, 2)}
    for every, rounds in {0: [], 1: [1, 2, 3], 2: [2, 3]}.items():
        for phase in ("trained", "averaged", "test"):
            assert [r["round"] for r in runs[every][1].of(phase)] == rounds, phase
    assert runs[0][0].weights.equal(runs[1][0].weights), "what is learned does not depend on tests"


def test_a_local_head_never_leaves_its_client(tmp_path: Path) -> None:
    fed, _ = federate(tmp_path, FedLID(local_head=True), rounds=2)
    assert all(name.startswith("backbone.") for name in fed.weights)


def test_statistics_of_clients_survive_the_servers_training(tmp_path: Path) -> None:
    for kind in ("server", "clients"):
        fed, _ = federate(tmp_path / kind, FedLID(statistics=kind), rounds=1)  # type: ignore[arg-type]
        same = torch.equal(fed.weights["backbone.1.running_mean"], fed.models["averaged"]["backbone.1.running_mean"])
        assert same == (kind == "clients")
        assert not torch.equal(fed.weights["backbone.0.weight"], fed.models["averaged"]["backbone.0.weight"])


@pytest.mark.parametrize(("study", "told"), [("views", {"recognize": "averaged"}), ("none", {})])
def test_the_card_names_the_mean_for_use_where_the_server_trains(
    study: Literal["views", "none"], told: dict[str, str], tmp_path: Path
) -> None:
    method = FedLID(server=study)
    fed, _ = federate(tmp_path, method, rounds=1)
    assert method.card(fed) == told
    assert {*told.values()} <= {*fed.models}


def test_a_share_without_labels_is_refused() -> None:
    assert FedLID(server="labels", share=0.2).share == 0.2
    with pytest.raises(RecipeError, match="learns none"):
        FedLID(share=0.2)


def test_a_server_section_is_refused_where_the_server_does_not_train() -> None:
    recipe = load_recipe("recognition", {"server.lr": 0.1})
    with pytest.raises(RecipeError, match="the server does not train"):
        make_method(recipe)


def test_dictionary_entries_are_further_negatives_of_nt_xent() -> None:
    torch.manual_seed(0)
    z, dictionary, t = torch.randn(6, 5), F.normalize(torch.randn(7, 5), dim=1), 0.3
    step = Step(ToyNet(5), None, Outputs(z, z))
    got = nt_xent(z, t) + more_negatives(dictionary, t)(step)
    unit = F.normalize(z, dim=1)
    losses = []
    for i in range(6):
        j = (i + 3) % 6
        others = sum(math.exp(float(unit[i] @ unit[k]) / t) for k in range(6) if k != i)
        others += sum(math.exp(float(unit[i] @ r) / t) for r in dictionary)
        losses.append(-math.log(math.exp(float(unit[i] @ unit[j]) / t) / others))
    assert float(got) == pytest.approx(sum(losses) / 6, rel=1e-5)


def test_alignment_is_the_mean_distance_to_the_base_and_leaves_running_statistics_alone() -> None:
    torch.manual_seed(0)
    model, samples = ToyNet(5).train(), torch.randn(1, 2).expand(8, 2).contiguous()
    with torch.no_grad():
        vectors = model.backbone(samples[:3])
    statistics = model.backbone[1].running_mean.clone()
    away = torch.tensor([3.0, 4.0, 0.0, 0.0, 0.0])
    term = alignment(Toy(), samples, vectors[:1].expand(8, 5) + away, 0.5)
    found = term(Step(model, (samples[:3],), Outputs(vectors, vectors))).detach()
    assert float(found) == pytest.approx(0.5 * 5.0, rel=1e-4)
    assert torch.equal(model.backbone[1].running_mean, statistics)


def test_fedca_keeps_the_newest_projections_of_all_clients(tmp_path: Path) -> None:
    fed, _ = federate(tmp_path, FedCA(dictionary=10, public=1), rounds=1)
    first = fed.memory["dictionary"]
    assert first.shape == (10, 2)
    assert torch.allclose(first.norm(dim=1), torch.ones(10))
    later, _ = federate(tmp_path / "later", FedCA(dictionary=20, public=1), rounds=2)
    assert later.memory["dictionary"].shape == (20, 2)
    assert later.memory["base"].shape == (1, 5)
