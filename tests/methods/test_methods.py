"""Each shared method against its definition: special cases that must coincide, closed forms, what stays where."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedreel.config import TrainConfig
from fedreel.core.aggregate import Mean
from fedreel.core.federation import Federation
from fedreel.core.method import Method
from fedreel.core.state import PrivateStore
from fedreel.core.task import EVERYONE, Outputs
from fedreel.core.terms import Step
from fedreel.core.update import TRAIN, Order, Update
from fedreel.core.weights import Weights, bind
from fedreel.methods.baselines import Centralised, LocalOnly
from fedreel.methods.fedagm import FedAGM
from fedreel.methods.fedavg import FedAvg
from fedreel.methods.fedavgm import FedAvgM
from fedreel.methods.fedbn import FedBN
from fedreel.methods.fedcmr import FedCMR
from fedreel.methods.fedlid import FedLID
from fedreel.methods.fedprox import FedProx, proximal
from fedreel.methods.fedu import FedU
from fedreel.methods.fedvssl import FedVSSL
from fedreel.methods.loss import LossWeighted
from fedreel.methods.moon import MOON, model_contrastive
from fedreel.methods.scaffold import SCAFFOLD
from support.toy import Toy, federate, make_worker

CLIENTS = ["c0", "c1", "c2", "c3"]


def final(folder: Path, method: Any, **options: Any) -> Weights:
    return federate(folder, method, **options)[0].weights


def one_round(folder: Path, method: Any, start: Weights | None = None) -> tuple[Weights, dict[str, Any]]:
    """The start, and every client's update of round 1, by orders of our own."""
    worker = make_worker(folder, method)
    start = start or worker.start.clone()
    return start, {c: worker.execute(Order(1, i + 1, c, TRAIN, {"global": start})) for i, c in enumerate(CLIENTS)}


def close(a: Weights, b: Weights, atol: float = 1e-6) -> bool:
    return a.layout == b.layout and all(torch.allclose(a[n], b[n], atol=atol) for n in a)


def test_fedavg_is_the_sample_weighted_mean(tmp_path: Path) -> None:
    start, updates = one_round(tmp_path / "a", FedAvg())
    n = sum(u.samples for u in updates.values())
    assert [u.samples for u in updates.values()] == [8, 12, 16, 20]
    got = final(tmp_path / "b", FedAvg(), rounds=1)
    for name in start:
        exact = sum(u.samples / n * u.weights[name].double() for u in updates.values())
        if start[name].is_floating_point():
            assert torch.allclose(got[name].double(), exact, atol=1e-6)
        else:
            assert int(got[name]) == round(float(exact))


@pytest.mark.parametrize("by", ["frames", "equal", "loss"])
def test_other_weights(tmp_path: Path, by: str) -> None:
    _, updates = one_round(tmp_path / "a", FedAvg())
    weight = {
        "frames": lambda u: u["frames"],
        "equal": lambda u: 1.0,
        "loss": lambda u: math.exp(-u.loss),
    }[by]
    average = Mean()
    for u in updates.values():
        average.add(u.weights, weight(u))
    expected = average.value
    assert close(final(tmp_path / "b", FedAvg(weight_by=by), rounds=1), expected)  # type: ignore[arg-type]
    if by == "loss":
        assert close(final(tmp_path / "c", LossWeighted(), rounds=1), expected)
        losses = [u.loss for u in updates.values()]
        shares = [weight(u) for u in updates.values()]
        assert sorted(range(4), key=lambda i: losses[i]) == sorted(range(4), key=lambda i: -shares[i])


def test_frames_equal_samples_when_all_videos_are_equally_long(tmp_path: Path) -> None:
    """The toy's clients have ten frames a sample, so both weightings must agree."""
    assert close(final(tmp_path / "a", FedAvg(weight_by="frames")), final(tmp_path / "b", FedAvg()))


def test_server_rate_and_momentum_follow_their_recursion(tmp_path: Path) -> None:
    w0, _ = one_round(tmp_path / "a", FedAvg())
    average = final(tmp_path / "b", FedAvg(), rounds=1)
    half = final(tmp_path / "c", FedAvgM(server_lr=0.5, beta=0.0), rounds=1)
    moving = [t.name for t in w0.layout.tensors if t.role in ("parameter", "norm")]
    for name in moving:
        assert torch.allclose(half[name], (w0[name] + average[name]) / 2, atol=1e-6)
    assert torch.equal(half["backbone.1.running_var"], average["backbone.1.running_var"])
    first, _ = federate(tmp_path / "d", FedAvgM(beta=0.9), rounds=1)
    second, _ = federate(tmp_path / "e", FedAvgM(beta=0.9), rounds=2)
    assert close(first.weights, average, 1e-5)  # no momentum yet
    # round 2 on its own: one round of plain averaging from the first round's model, in the second round's batches
    worker = make_worker(tmp_path / "f", FedAvg())
    plain = Mean()
    for i, client in enumerate(CLIENTS):
        update = worker.execute(Order(2, i + 1, client, TRAIN, {"global": first.weights}))
        plain.add(update.weights, update.samples)
    plain_average = plain.value
    for name in moving:
        m1 = first.weights[name] - w0[name]
        m2 = 0.9 * m1 + (plain_average[name] - first.weights[name])
        assert torch.allclose(second.weights[name], first.weights[name] + m2, atol=1e-5)


class Spoiled:
    """An engine in which client c3 answers with its weights reversed and blown up, within the norm bound."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.slots, self.clients, self.blueprint = inner, 1, inner.clients, inner.blueprint

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def next(self) -> Any:
        result = self.inner.next()
        if result.client == "c3" and isinstance(result, Update):
            result.weights = -20.0 * result.weights
        return result


@pytest.mark.parametrize("rule", ["median", "trimmed-mean", "krum"])
@pytest.mark.parametrize("method", [FedAvg(), FedVSSL(), FedLID(server="none"), SCAFFOLD(), FedCMR()], ids=repr)
def test_robust_rules_withstand_a_client_that_a_mean_does_not(tmp_path: Path, method: Method, rule: str) -> None:
    """A rule is a setting of the round: it holds for every method that needs no more than a mean."""
    honest = final(tmp_path / "a", method, rounds=1)
    plain = final(tmp_path / "b", method, rounds=1, wrap=Spoiled)
    robust = final(tmp_path / "c", method, rounds=1, wrap=Spoiled, aggregation=rule, trim=0.25)
    assert plain.distance(honest) > 4
    assert robust.distance(honest) < 1.5


def test_fedprox_without_mu_is_fedavg_and_with_much_of_it_stays(tmp_path: Path) -> None:
    plain = final(tmp_path / "a", FedAvg())
    assert final(tmp_path / "b", FedProx(mu=0.0)).equal(plain)
    start, free = one_round(tmp_path / "c", FedAvg())
    _, held = one_round(tmp_path / "d", FedProx(mu=5.0))
    for client in CLIENTS:
        assert held[client].weights.distance(start) < free[client].weights.distance(start)


def test_the_proximal_gradient_is_mu_times_the_difference(tmp_path: Path) -> None:
    model = Toy().model()
    weights = bind(model)
    received = weights.clone()
    weights["head.weight"].add_(0.5)
    term = proximal(received, mu=0.3)
    value = term(Step(model, None, None))  # type: ignore[arg-type]
    value.backward()
    assert value.item() == pytest.approx(0.5 * 0.3 * 0.25 * 10, rel=1e-5)
    assert torch.allclose(model.head.weight.grad, torch.full((2, 5), 0.15), atol=1e-6)
    assert float(model.backbone[0].weight.grad.abs().sum()) == 0.0


def test_fedbn_clients_keep_their_own_batch_norm(tmp_path: Path) -> None:
    fed, _ = federate(tmp_path, FedBN(), rounds=3, fraction=0.5, seed=3)
    assert not any(n.startswith("backbone.1") for n in fed.weights)
    store = PrivateStore(tmp_path / "clients")
    seen = {c: store.load(c, (99, 0)).tensors for c in CLIENTS}
    means = [t["model/backbone.1.running_mean"] for t in seen.values() if t]
    assert len(means) >= 2
    assert not torch.equal(means[0], means[1])


def test_a_client_that_is_not_drawn_keeps_its_private_tensors_to_the_bit(tmp_path: Path) -> None:
    worker = make_worker(tmp_path, FedBN())
    w = worker.start.clone()
    worker.execute(Order(1, 1, "c0", TRAIN, {"global": w}))
    before = {n: t.clone() for n, t in worker.store.load("c0", (2, 0)).tensors.items()}
    for r in (2, 3):
        worker.execute(Order(r, 1, "c1", TRAIN, {"global": w}))
    after = worker.store.load("c0", (4, 0)).tensors
    assert all(torch.equal(before[n], after[n]) for n in before)


def test_fedagm_without_lambda_and_mu_is_fedavg(tmp_path: Path) -> None:
    a = final(tmp_path / "a", FedAGM(lambda_=0.0, tau=1.0, mu=0.0))
    assert close(a, final(tmp_path / "b", FedAvg()), 1e-5)


def test_fedagm_recursion_equals_the_form_of_its_code(tmp_path: Path) -> None:
    """W_t = tau * avg + (1 - tau) * ahead and m_t = W_t - W_{t-1}."""
    lam, tau = 0.8, 0.6
    seen: list[tuple[Weights, Weights, Weights]] = []

    class Watched(FedAGM):
        def run(self, fed: Federation) -> None:
            original = fed.train

            def train(clients: Any, weights: Any, **args: Any) -> Any:
                average, before = Mean(), fed.weights
                for u in original(clients, weights, **args):
                    average.add(u.weights, u.samples)
                    yield u
                seen.append((before, weights, average.value))

            fed.train = train  # type: ignore[method-assign]
            super().run(fed)

    fed, _ = federate(tmp_path, Watched(lambda_=lam, tau=tau, mu=0.0), rounds=3)
    parameters = [t.name for t in fed.weights.layout.tensors if t.role in ("parameter", "norm")]
    after = [s[0] for s in seen[1:]] + [fed.weights]
    momentum = None
    for (before, ahead, average), new in zip(seen, after):
        for n in parameters:
            if momentum is not None:
                assert torch.allclose(ahead[n], before[n] + lam * momentum[n], atol=1e-5)
            assert torch.allclose(new[n], tau * average[n] + (1 - tau) * ahead[n], atol=1e-5)
        momentum = new - before


def test_running_variances_stay_positive_under_momentum(tmp_path: Path) -> None:
    for i, method in enumerate((FedAGM(lambda_=0.95, tau=1.0), FedAvgM(beta=0.95, server_lr=2.0))):
        weights = final(tmp_path / str(i), method, rounds=12, train=TrainConfig(batch_size=4, lr=0.3))
        assert float(weights["backbone.1.running_var"].min()) > 0


def test_moon_without_mu_is_fedavg_and_its_first_round_has_no_contrast(tmp_path: Path) -> None:
    assert final(tmp_path / "a", MOON(mu=0.0)).equal(final(tmp_path / "b", FedAvg()))
    assert final(tmp_path / "c", MOON(mu=5.0), rounds=1).equal(final(tmp_path / "d", FedAvg(), rounds=1))
    assert not final(tmp_path / "e", MOON(mu=5.0), rounds=2).equal(final(tmp_path / "f", FedAvg(), rounds=2))


def test_the_model_contrastive_term_by_hand() -> None:
    z = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    same, other = z, torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    step = Step(None, None, Outputs(z, z))  # type: ignore[arg-type]

    class Given(Toy):
        def forward(self, model: Any, batch: Any) -> Outputs:
            return Outputs(model, model)

    def value(received: Any, previous: Any) -> float:
        return float(model_contrastive(Given(), received, previous, mu=2.0, temperature=0.5)(step))

    assert value(same, same) == pytest.approx(2 * math.log(2))
    # first sample: cos 1 against 0; second: 1 against 1
    expected = 2 * 0.5 * (math.log(1 + math.exp(-2.0)) + math.log(2))
    assert value(same, other) == pytest.approx(expected, rel=1e-6)


def test_moons_previous_model_is_the_clients_own_last_one(tmp_path: Path) -> None:
    worker = make_worker(tmp_path, MOON())
    update = worker.execute(Order(1, 1, "c2", TRAIN, {"global": worker.start.clone()}))
    kept = worker.store.load("c2", (2, 0)).tensors
    assert all(torch.equal(kept[f"previous/{n}"], update.weights[n]) for n in update.weights)
    assert not worker.store.load("c1", (2, 0))


def test_fedu_takes_the_global_predictor_below_mu_and_keeps_its_own_above(tmp_path: Path) -> None:
    class Watched(FedU):
        def local_training(self, client: Any) -> None:
            original = client.fit

            def fit(*args: Any, **kwargs: Any) -> None:
                started[client.name] = client.model.head.weight.detach().clone()
                original(*args, **kwargs)

            client.fit = fit
            super().local_training(client)

    for mu, keeps in ((math.inf, False), (0.0, True)):
        worker = make_worker(tmp_path / str(mu), Watched(mu=mu), ConvToy())
        started: dict[str, Tensor] = {}
        w = worker.start.clone()
        update = worker.execute(Order(1, 1, "c0", TRAIN, {"global": w}))
        assert torch.equal(started["c0"], w["head.weight"])  # the first time: the global predictor
        moved = w.clone()
        moved["head.weight"].fill_(0.123)
        again = worker.execute(Order(2, 1, "c0", TRAIN, {"global": moved}))
        assert (update.numbers["kept"], again.numbers["kept"]) == (0.0, float(keeps))
        expected = update.weights["head.weight"] if keeps else moved["head.weight"]
        assert torch.equal(started["c0"], expected)
        divergence = float((update.weights["backbone.0.weight"] - w["backbone.0.weight"]).norm())
        assert worker.store.load("c0", (2, 1)).numbers["divergence"] == pytest.approx(divergence, rel=1e-5)
        assert update.numbers["divergence"] == pytest.approx(divergence, rel=1e-5)


def test_fedu_s_log_says_who_kept_its_own_predictor(tmp_path: Path) -> None:
    _, notes = federate(tmp_path, FedU(mu=0.0), task=ConvToy(), rounds=2)
    first, second = (row["clients"] for row in notes.of("predictors"))
    assert {c["kept"] for c in first.values()} == {0.0}
    assert {c["kept"] for c in second.values()} == {1.0}
    assert all(c["divergence"] > 0 for c in first.values())


def test_centralised_is_plain_training_on_the_union(tmp_path: Path) -> None:
    got = final(tmp_path / "a", Centralised(), rounds=1, train=TrainConfig(batch_size=64, lr=0.1, shuffle=False))
    task = Toy()
    torch.manual_seed(0)
    model = task.model()
    batch = task.population(None, 0).data(EVERYONE).train.tensors
    task.loss(task.forward(model, batch), batch).backward()
    for name, p in model.named_parameters():
        assert torch.allclose(got[name], p.detach() - 0.1 * p.grad, atol=1e-6)


def test_centralised_with_kept_optimizer_is_one_long_training(tmp_path: Path) -> None:
    """Momentum carried over rounds: three rounds of one epoch equal one round of three epochs (full batches)."""

    def train(epochs: int) -> TrainConfig:
        return TrainConfig(batch_size=64, lr=0.1, momentum=0.9, shuffle=False, keep_optimizer=True, epochs=epochs)

    for optimizer in ("sgd", "adam"):
        from dataclasses import replace

        a = final(tmp_path / f"a{optimizer}", Centralised(), rounds=3, train=replace(train(1), optimizer=optimizer))
        b = final(tmp_path / f"b{optimizer}", Centralised(), rounds=1, train=replace(train(3), optimizer=optimizer))
        assert a.equal(b)


def test_local_only_clients_do_not_influence_each_other(tmp_path: Path) -> None:
    fed, notes = federate(tmp_path / "a", LocalOnly(), rounds=3)
    assert len(fed.weights) == 0
    assert notes.of("train")[-1]["bytes_up"] == 4 * 3 * 8  # three numbers a client, no tensor
    # with three clients instead of four the first three end the same
    federate(tmp_path / "b", LocalOnly(), rounds=3, task=Toy(clients=3))
    for client in ("c0", "c1", "c2"):
        a, b = (PrivateStore(tmp_path / x / "clients").load(client, (99, 0)).tensors for x in "ab")
        assert a
        assert all(torch.equal(a[n], b[n]) for n in a)


class ConvToy(Toy):
    """The toy with its first layer as a convolution, where FedU measures."""

    def model(self) -> torch.nn.Module:
        class Net(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.backbone = torch.nn.Sequential(torch.nn.Conv1d(1, 3, 2), torch.nn.Flatten())
                self.head = torch.nn.Linear(3, 2)

        return Net()

    def forward(self, model: Any, batch: Any) -> Outputs:
        features = model.backbone(batch[0][:, None])
        return Outputs(features, model.head(features))
