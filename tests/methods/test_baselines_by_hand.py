"""The shared baselines on two clients and one number, worked by hand: see support/pull.py for the task.

From 0, one step of rate 1/2 leads `near` (target 2, one sample) to 1, three steps lead `far` (target 6, three samples)
to 5.25. Their mean by samples is 4.1875, as equals 3.125."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from fedreel.core.weights import Weights
from fedreel.errors import RecipeError
from fedreel.methods.ditto import Ditto
from fedreel.methods.fedavg import FedAvg
from fedreel.methods.fedavgm import FedAvgM
from fedreel.methods.feddyn import FedDyn
from fedreel.methods.fednova import FedNova, effective_steps
from fedreel.methods.fedopt import FedAdagrad, FedAdam, FedYogi
from fedreel.methods.fedper import FedPer
from fedreel.methods.fedrep import FedRep
from fedreel.methods.scaffold import SCAFFOLD
from support.pull import kept, pulled
from support.toy import federate


def test_fedavg_is_the_mean_by_samples_or_as_equals(tmp_path: Path) -> None:
    assert pulled(tmp_path / "a", FedAvg())[0] == pytest.approx(4.1875)
    assert pulled(tmp_path / "b", FedAvg(weight_by="equal"))[0] == pytest.approx(3.125)


def test_fedavgm_adds_what_is_left_of_the_last_move(tmp_path: Path) -> None:
    """Round 2 starts from 4.1875: near ends at 3.09375, far at 5.7734375, their mean 5.103515625 is 0.916015625 on."""
    assert pulled(tmp_path / "a", FedAvgM(beta=0.9))[0] == pytest.approx(4.1875)
    assert pulled(tmp_path / "b", FedAvgM(beta=0.9), 2)[0] == pytest.approx(4.1875 + 0.9 * 4.1875 + 0.916015625)
    assert pulled(tmp_path / "c", FedAvgM(beta=0.0, server_lr=0.5))[0] == pytest.approx(4.1875 / 2)


@pytest.mark.parametrize(
    ("method", "m", "v"),
    [
        (FedAdam(server_lr=0.1), 0.1 * 4.1875, 0.99e-6 + 0.01 * 4.1875**2),
        (FedYogi(server_lr=0.1), 0.1 * 4.1875, 1e-6 + 0.01 * 4.1875**2),  # v is less than d^2, so it grows
        (FedAdagrad(server_lr=0.1), 4.1875, 1e-6 + 4.1875**2),
    ],
    ids=lambda value: type(value).__name__,
)
def test_adaptive_servers_divide_the_move_by_its_size(tmp_path: Path, method: FedAdam, m: float, v: float) -> None:
    assert pulled(tmp_path, method)[0] == pytest.approx(0.1 * m / (math.sqrt(v) + 0.001), rel=1e-5)


def test_yogi_shrinks_the_square_of_the_move_where_it_is_the_larger_one(tmp_path: Path) -> None:
    """Round 1 moves by d = 4.1875. The server goes as far as the mean (rate chosen so), and the second move is smaller
    than the square kept of the first: v - (1 - beta2) d^2 sign(v - d^2), here with beta2 = 0: v - d^2."""
    to_mean = 1.0 * (4.1875 + 1.0)
    method = FedYogi(server_lr=to_mean, beta1=0.0, beta2=0.0, tau=1.0)
    w1, fed, _ = pulled(tmp_path / "a", method)
    v1 = 1.0 + 4.1875**2
    assert w1 == pytest.approx(to_mean * 4.1875 / (math.sqrt(v1) + 1.0), rel=1e-5)
    ends = (2 + (w1 - 2) / 2, 6 + (w1 - 6) / 8)
    d = (ends[0] + 3 * ends[1]) / 4 - w1
    assert d**2 < v1
    _, fed, _ = pulled(tmp_path / "b", method, 2)
    assert float(fed.memory["v"]["backbone.w"]) == pytest.approx(v1 - d**2, rel=1e-4)


def test_scaffold_takes_the_drift_out_of_the_second_round(tmp_path: Path) -> None:
    """Round 1: x = 3.125; c_near = -1 / 0.5 = -2, c_far = -5.25 / 1.5 = -3.5, c = -2.75. In round 2 near is pulled to
    2.75 instead of 2 and ends at 2.9375, far to 5.25 instead of 6 and ends at 4.984375."""
    x, fed, _ = pulled(tmp_path / "a", SCAFFOLD())
    assert x == pytest.approx(3.125)
    assert float(fed.memory["control"]["backbone.w"]) == pytest.approx(-2.75)
    assert kept(tmp_path / "a", "far", "control/backbone.w") == pytest.approx(-3.5)
    x, fed, _ = pulled(tmp_path / "b", SCAFFOLD(), 2)
    assert x == pytest.approx((2.9375 + 4.984375) / 2)
    near, far = -2 + 2.75 + (3.125 - 2.9375) / 0.5, -3.5 + 2.75 + (3.125 - 4.984375) / 1.5
    assert float(fed.memory["control"]["backbone.w"]) == pytest.approx((near + far) / 2)
    assert pulled(tmp_path / "c", SCAFFOLD(server_lr=0.5))[0] == pytest.approx(3.125 / 2)


def test_scaffolds_control_moves_by_the_share_of_clients_that_took_part(tmp_path: Path) -> None:
    """With one of two clients, c moves by half of its change of control: -1 or -1.75."""
    _, fed, notes = pulled(tmp_path, SCAFFOLD(), clients=1)
    (row,) = notes.of("train")
    expected = {"near": -1.0, "far": -1.75}[row["clients"][0]]
    assert float(fed.memory["control"]["backbone.w"]) == pytest.approx(expected)


def test_fednova_counts_steps_once(tmp_path: Path) -> None:
    """d = 1 and 5.25 / 3 = 1.75; tau = 0.25 x 1 + 0.75 x 3 = 2.5; w = 2.5 (0.25 x 1 + 0.75 x 1.75)."""
    assert pulled(tmp_path / "a", FedNova())[0] == pytest.approx(2.5 * 1.5625)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 1.0])
def test_effective_steps_are_the_moves_of_equal_gradients(momentum: float) -> None:
    buffer = way = 0.0
    for _ in range(3):
        buffer = momentum * buffer + 1.0
        way += buffer
    assert effective_steps(3, momentum) == pytest.approx(way)


def test_feddyn_shifts_the_mean_by_what_clients_still_pull(tmp_path: Path) -> None:
    """alpha = 1/2. Near: one step to 1. Far: 3, then 3 + 0.75, then 3.75 + 0.1875. The mean is 2.46875,
    h = -1/2 x 2.46875, w = 2.46875 - 2 h; g = -1/2 and -1/2 x 3.9375."""
    w, _, _ = pulled(tmp_path / "a", FedDyn(alpha=0.5))
    assert w == pytest.approx(2.46875 + 2 * 0.5 * 2.46875)
    assert kept(tmp_path / "a", "near", "g/backbone.w") == pytest.approx(-0.5)
    assert kept(tmp_path / "a", "far", "g/backbone.w") == pytest.approx(-1.96875)
    # round 2 from 4.9375: near's gradient is (w - 2) + 1/2 + 0, one step leads to 3.21875; far's: steps by hand
    far = 4.9375
    for _ in range(3):
        far -= 0.5 * ((far - 6) + 1.96875 + 0.5 * (far - 4.9375))
    mean = (3.21875 + far) / 2
    h = -1.234375 - 0.5 * (mean - 4.9375)
    assert pulled(tmp_path / "b", FedDyn(alpha=0.5), 2)[0] == pytest.approx(mean - 2 * h, rel=1e-5)


def test_ditto_is_fedavg_with_a_model_of_ones_own_beside_it(tmp_path: Path) -> None:
    """lambda = 1/2: near's own model goes to 1, far's over 3 and 3.75 to 3.9375, and these are what is tested."""
    w, _, notes = pulled(tmp_path / "a", Ditto(lambda_=0.5))
    assert w == pytest.approx(4.1875)
    assert kept(tmp_path / "a", "far", "personal/backbone.w") == pytest.approx(3.9375)
    (test,) = notes.of("test")
    assert test["clients"]["near"]["backbone"] == pytest.approx(1.0)
    assert test["clients"]["far"]["backbone"] == pytest.approx(3.9375)
    ditto, _ = federate(tmp_path / "b", Ditto(lambda_=1.0))
    fedavg, _ = federate(tmp_path / "c", FedAvg())
    assert ditto.weights.equal(fedavg.weights)


def test_dittos_own_models_go_on_from_where_they_were(tmp_path: Path) -> None:
    """Round 2, held near 4.1875: near goes from 1 by -1/2 ((1 - 2) + 1/2 (1 - 4.1875))."""
    pulled(tmp_path, Ditto(lambda_=0.5), 2)
    assert kept(tmp_path, "near", "personal/backbone.w") == pytest.approx(1 + 0.5 * (1 + 0.5 * 3.1875))


def test_fedper_averages_the_body_and_leaves_heads_at_home(tmp_path: Path) -> None:
    w, fed, notes = pulled(tmp_path, FedPer(), 2)
    assert list(fed.weights) == ["backbone.w"]
    assert w == pytest.approx(5.103515625)
    test = notes.of("test")[-1]["clients"]
    assert test["near"]["head"] == pytest.approx(2 - 2 / 4)  # two steps from 0, never averaged
    assert test["far"]["head"] == pytest.approx(6 - 6 / 64)


def test_fedrep_trains_the_head_first_and_alone_then_the_body_alone(tmp_path: Path) -> None:
    w, _, notes = pulled(tmp_path, FedRep(head_epochs=2))
    assert w == pytest.approx(4.1875)
    (test,) = notes.of("test")
    assert test["clients"]["near"]["head"] == pytest.approx(2 - 2 / 4)
    assert test["clients"]["far"]["head"] == pytest.approx(6 - 6 / 64)


def test_what_is_not_trained_stays_even_where_weights_decay(tmp_path: Path) -> None:
    """Weight decay would pull a frozen body towards zero: trained alone, the head leaves every bit of it."""
    from fedreel.config import TrainConfig
    from fedreel.core.client import Client
    from fedreel.core.update import TRAIN, Order
    from support.toy import make_worker

    class HeadOnly(FedAvg):
        def local_training(self, client: Client) -> None:
            client.fit(only=lambda t: t.part == "head")

    worker = make_worker(tmp_path, HeadOnly(), train=TrainConfig(batch_size=4, lr=0.1, momentum=0.9, weight_decay=0.1))
    update = worker.execute(Order(1, 1, "c1", TRAIN, {"global": worker.start}))
    body = worker.start.layout.only(lambda t: t.part != "head" and t.trained)
    assert update.weights.take(body).equal(worker.start.take(body))  # type: ignore[union-attr]
    assert not update.weights.equal(worker.start)  # type: ignore[union-attr]


def test_weighing_by_what_nobody_sends_is_refused_before_anybody_trains(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"do not send 'frames'(.|\n)*weight_by"):
        pulled(tmp_path, FedAvg(weight_by="frames"))
    assert not (tmp_path / "ledger.jsonl").exists()


def test_weights_of_another_layout_do_not_add(tmp_path: Path) -> None:
    _, fed, _ = pulled(tmp_path, FedAvg())
    other = Weights.of({"a": fed.weights["backbone.w"], "b": fed.weights["head.w"]})
    with pytest.raises(ValueError, match="other tensors"):
        fed.weights + other
