"""The client's side of every engine: load what was sent, work, keep what is private, let out what may leave."""

from __future__ import annotations

import copy
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn

from fedreel.config import TrainConfig, TransferConfig
from fedreel.core.abilities import Accountable
from fedreel.core.batchnorm import by_batch
from fedreel.core.blueprint import Blueprint
from fedreel.core.capture import Recorder
from fedreel.core.declared import TESTED
from fedreel.core.discretion import Discretion
from fedreel.core.exchange import TIMES, Door, Ledger, Policy, check_kinds
from fedreel.core.fused import Fuser
from fedreel.core.method import Method
from fedreel.core.optim import Optimizers
from fedreel.core.residence import Residence
from fedreel.core.state import PrivateStore, State, TrainedModels
from fedreel.core.task import EVERYONE, ClientData, Population, Task
from fedreel.core.terms import Adjust, Term
from fedreel.core.timing import Times
from fedreel.core.training import Fitted, Pause, check_finite, learning_rate
from fedreel.core.transfer.coded import make_coded
from fedreel.core.trust import QUESTIONS
from fedreel.core.update import EVALUATE, SECURE, TRAIN, Answer, Named, Order, Reply, Update, Value, expect
from fedreel.core.weights import TensorInfo, Weights, check_bound
from fedreel.errors import FedreelError, PolicyError, nearest

if TYPE_CHECKING:
    from fedreel.core.secure.work import ClientSums

_MODEL = "model"  # the group of a client's private tensors of the model
T = TypeVar("T")


class Client:
    """What a method's client side sees while one order is carried out."""

    def __init__(self, worker: Worker, order: Order, data: ClientData, state: State) -> None:
        self._worker, self.order = worker, order
        self.name, self.round, self.args, self.times = order.client, order.round, order.args, Times()
        self.models: Mapping[str, Weights] = order.models
        self.data, self.state, self.task, self.model = data, state, worker.task, worker.model
        self.config: TrainConfig = worker.config
        self.numbers: dict[str, float] = {}  # what leaves with the model, if the method declares it
        self.tensors: dict[str, Named] = {}

    @cached_property
    def received(self) -> Weights:
        """The (first) model that came with the order."""
        return next(iter(self.models.values())).to(self._worker.device)

    @property
    def current(self) -> Weights:
        """A copy of what travels of the model, as it is now."""
        return self._worker.weights.take(self._worker.travelling)

    def arg(self, name: str, kind: type[T]) -> T:
        """What came with the order under this name, tensors on this client's device."""
        value = self.args[name]
        here = value.to(self._worker.device) if isinstance(value, Tensor | Weights) else value
        return expect(here, kind, f"the argument '{name}' of an order")

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Write tensors into the model by name."""
        if isinstance(weights, Weights):
            self._worker.weights.put(weights)
        else:
            for name, tensor in weights.items():
                self._worker.weights[name].copy_(tensor)

    def weights(self, keep: Callable[[TensorInfo], bool] | None = None) -> Weights:
        """A copy of the model as it is now, private tensors included but no frozen ones, or of a part of it."""
        whole = self._worker.weights
        return whole.take(whole.layout.moving if keep is None else whole.layout.moving.only(keep))

    def frozen(self, weights: Mapping[str, Tensor]) -> nn.Module:
        """A model of other weights (the rest as the model is now) that takes no gradients. Where running statistics
        came with them it normalises by these, else by the batch it sees: the client's own would not belong to them."""
        other = self._other(weights)
        came = all(t.name in weights for t in self._worker.weights.layout.tensors if t.role == "statistics")
        return other.eval() if came else by_batch(other)

    def _other(self, weights: Mapping[str, Tensor]) -> nn.Module:
        other = self._worker.spare()
        state = other.state_dict()  # which names tied tensors twice
        with torch.no_grad():
            for name, mine in self._worker.weights.items():
                state[name].copy_(weights.get(name, mine))
        return other

    def test_loss(self, weights: Weights) -> float:
        """Mean training loss of other weights on this client's data, without training (IFCA's question)."""
        mine = self.weights()
        self.load(weights)
        self.model.eval()
        total, n = 0.0, 0
        with torch.no_grad():
            for batch in self.data.train.batches(self.config.batch_size):
                total += float(self.task.loss(self.task.forward(self.model, batch), batch)) * len(batch[0])
                n += len(batch[0])
        self._worker.weights.put(mine)
        return total / n

    def fit(
        self,
        terms: Sequence[Term] = (),
        *,
        adjust: Adjust | None = None,
        epochs: int | None = None,
        only: Callable[[TensorInfo], bool] | None = None,
    ) -> Fitted:
        """Local epochs on the training data, of the whole model or of some tensors `only`; sets the numbers `samples`
        and `loss`. Terms are added to the loss, `adjust` changes the gradients; both are functions of a step."""
        worker, config, epochs = self._worker, self.config, self.config.epochs if epochs is None else epochs
        worker.door.policy.jobs.check_epochs(epochs)
        optimizer = worker.optimizers.of(only)
        optimizer.reset(learning_rate(config, self.round, worker.rounds))
        if config.keep_optimizer:
            optimizer.restore(self.state.group(worker.optimizers.group(optimizer)))
        fitted = worker.trainer(
            self,
            self.model,
            self.task,
            self.data.train,
            optimizer,
            config,
            terms=terms,
            adjust=adjust,
            epochs=epochs,
            generator=worker.generator,
            deadline=None if self.order.limit is None else worker.started + self.order.limit,
            recorder=worker.recorder,
            fuser=worker.fuser,
            pause=worker.pause,
        )
        self.trained(fitted.loss)
        self.times += fitted.times
        if config.keep_optimizer:
            self.state.keep(worker.optimizers.group(optimizer), optimizer.state())
        return fitted

    def test(self) -> dict[str, float]:
        """The task's metrics of the model as it is now on this client's test data."""
        self.model.eval()
        size = 4 * self.config.batch_size
        with torch.no_grad():
            if type(self.task).before_test is not Task.before_test:  # else the training data are not needed
                self.task.before_test(self.model, self.data.train, size)
            return self.task.evaluate(self.model, self.data.test, size)

    def trained(self, loss: float) -> None:
        """Note the numbers of a training that has ended with this mean loss; raises if it diverged."""
        check_finite(loss, self.name)
        self.numbers |= {"samples": float(len(self.data.train)), "loss": loss, **self.data.numbers}


class Worker:
    """One model, one optimizer, reused for every client that is worked for here."""

    def __init__(
        self,
        task: Task,
        method: Method,
        config: TrainConfig,
        population: Population,
        *,
        rounds: int,
        seed: int,
        device: torch.device,
        store: PrivateStore,
        ledger: Ledger,
        policy: Policy,
        memory: int = 0,
        discretion: Discretion | None = None,
        transfer: TransferConfig | None = None,
    ) -> None:
        """`memory` is how many bytes of the clients' data may lie on the device; 0: a share of what it has."""
        self.task, self.method, self.config, self.population = task, method, config, population
        self.rounds, self.seed, self.device, self.store = rounds, seed, device, store
        self.blueprint = made = Blueprint(task, method, seed, device)
        self.model, self.weights, self.initial, self.start = made.model, made.weights, made.initial, made.start
        self.travelling, self.private = made.travelling, made.private
        self.door = Door(self.travelling, policy, ledger)
        self.transfer, self.coded = transfer, make_coded(transfer, self.travelling)
        self.optimizers, self.generator = Optimizers(self.model, made.weights.layout.moving, config), torch.Generator()
        self.recorder = Recorder() if device.type == "cuda" and config.cuda_graph else None
        self.fuser = Fuser() if config.fuse else None
        self.pause: Pause | None = None
        self.gathers = False  # whether somebody here makes means of clients (transfer.together)
        self.trained: TrainedModels | None = None  # where models are kept to look at afterwards, if they are
        self.sums: ClientSums | None = None  # how updates leave where only their sum may be seen
        self.started = 0.0
        self.discretion = discretion or Discretion()
        self.discretion.check(self.model, task)
        self.trainer: Callable[..., Fitted] = self.discretion.fit  # an engine may have trained before, with others
        self.declared = {**method.sends, **task.sends} if self.discretion.sends else {}
        check_kinds(self.declared, "the method or task")
        self.residence = Residence(device, memory)
        self._client: Client | None = None  # whom it last worked for: its data stay till the device has done its work
        self._spares: list[nn.Module] = []
        self._spares_used, self._checked = 0, False

    def another(self) -> Worker:
        """A further worker for the same clients, with a model of its own; data and private state are in common."""
        other = Worker(
            self.task,
            self.method,
            self.config,
            self.population,
            rounds=self.rounds,
            seed=self.seed,
            device=self.device,
            store=self.store,
            ledger=self.door.ledger,
            policy=self.door.policy,
            discretion=self.discretion,
            transfer=self.transfer,
        )
        other.residence, other.trained, other.sums, other.fuser = self.residence, self.trained, self.sums, self.fuser
        return other

    def leaves(self) -> dict[str, str]:
        """All that this job can ask of a client: name -> kind. From the declarations that door and ledger use."""
        questions = [getattr(type(self.method), n, None) for n in dir(type(self.method))]
        asked = {name: kind for q in questions for name, kind in getattr(q, "sends", {}).items()}
        times = self.door.allowed(TIMES) if self.discretion.sends else {}
        trained = {**self.model_kind, **self.declared, **times} if self.sums is None else {"update": "masked-sum"}
        return {"name": "name", **trained, **asked}

    def vouches(self) -> dict[str, str]:
        """What it asks beyond that when the last round is over: name -> kind. What the policy refuses is left out."""
        if not isinstance(self.task, Accountable) or not self.discretion.asks:
            return {}
        return {n: kind for f in QUESTIONS.values() for n, kind in f.sends.items()}  # type: ignore[attr-defined]

    def introduce(self, client: str) -> None:
        """Before the first order: may all that this job can ask of the client leave? The client's name leaves now."""
        self.door.check_order(self.leaves())
        order = Order(0, 0, client, "roster", {})
        self.door.ledger.write(order, Answer(0, 0, client, {}), {"name": "name"})

    def execute(self, order: Order) -> Reply:
        """Carry an order out. Everything random is drawn from (seed, round, client, purpose), so a
        repetition gives the same and methods that are compared see the same batches."""
        if self.sums is not None and order.kind in (TRAIN, SECURE):
            return self.sums.answer(self, order)
        client = self.begin(order)
        work: dict[str, Callable[[Client, Order], Reply]] = {TRAIN: self._train, EVALUATE: self._evaluate}
        reply = work.get(order.kind, self._answer)(client, order)
        self._checked = self._checked or check_bound(self.model, self.weights)
        return reply

    def begin(self, order: Order) -> Client:
        """The client of an order, its model set up and everything random seeded."""
        self.started = time.monotonic()
        seed = self.seed_of(order)
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)
        self.generator.manual_seed(seed)
        self._spares_used = 0
        client = self._client = self.open(order)
        self.discretion.begin(client)
        self.enter(client, self.weights)
        return client

    # the parts of a training order, for engines that train several clients together

    def seed_of(self, order: Order) -> int:
        """The seed of everything random in this order, the client's batch order above all."""
        text = f"{self.seed}/{order.round}/{order.client}/{order.kind}/{order.question}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")

    def open(self, order: Order) -> Client:
        """The client with its data and its private state as the order finds them."""
        if order.client == EVERYONE and any(self.task.own(t) for t in self.weights.layout.tensors):
            raise FedreelError(
                "training in one place makes one model, but each client of this task has tensors of its own",
                hint="use local-only, or tell the task to share them (skeleton: own_classifier, own_statistics)",
            )
        state = self.store.load(order.client, order.key)
        return Client(self, order, self.data_of(order.client), State(dict(state.tensors), dict(state.numbers)))

    def data_of(self, client: str) -> ClientData:
        return self.residence.of_client(client, self.population, self.task, self.model)

    def check_training(self) -> None:
        """Raise, before any work is done, if this site would not let a trained model out."""
        self.door.check_order(self.model_kind)

    @property
    def model_kind(self) -> dict[str, str]:
        """What a trained model is when it leaves."""
        return {"weights": self.discretion.kind} if len(self.travelling.tensors) else {}

    def enter(self, client: Client, weights: Weights) -> None:
        """Set a model up: private tensors as this client left them, the rest as received."""
        if len(self.private.tensors):
            weights.put(self.initial)
            kept = client.state.group(_MODEL)
            for name in filter(kept.__contains__, self.private.place):
                weights[name].copy_(kept[name])
        weights.put(client.received if client.models else self.start)  # a question may come without a model

    def leave(self, client: Client, order: Order, weights: Weights, travelling: Weights) -> Update:
        """Keep the private part of a trained model, let its travelling part out."""
        numbers, tensors, coded = *((client.numbers, client.tensors) if self.discretion.sends else ({}, {})), None
        times = client.times.after(client.data.loading) if self.discretion.sends else None
        gathered = self.gathers and bool(order.together)
        if self.coded is not None and not gathered:
            coded, tensors = self.coded.write_all(order, travelling, tensors, client.state)
        self.keep(client, order, weights)
        if gathered:  # it leaves in a mean
            return Update(*order.key, order.client, travelling, numbers, tensors, times=times)
        let_out, told = self.door.release_update, self.declared
        kind, spent = self.model_kind, self.discretion.spent(client)
        return let_out(order, travelling, numbers, tensors, told, coded, kind=kind, epsilon=spent, times=times)

    def made(self, client: Client, order: Order) -> Weights:
        """What travels of the model that a client has just trained. Nothing of it has left yet."""
        self.door.check_samples(order.kind, client.data)
        self.method.local_training(client)
        self._checked = self._checked or check_bound(self.model, self.weights)
        return self.weights.take(self.travelling)

    def keep(self, client: Client, order: Order, weights: Weights) -> None:
        """Keep the private part of a trained model."""
        if len(self.private.tensors):
            client.state.keep(_MODEL, weights.take(self.private))
        self._keep(client, order)
        if self.trained is not None:
            self.trained.keep(order.client, order.round, weights.take(weights.layout.moving))

    # behind it

    def _train(self, client: Client, order: Order) -> Update:
        self.check_training()
        return self.leave(client, order, self.weights, self.made(client, order))

    def _evaluate(self, client: Client, order: Order) -> Answer:
        self.door.check_order({"metrics": "metric"})
        self.door.check_samples(order.kind, client.data)
        metrics = self.discretion.tested(client, self.method.local_test(client))
        return self.door.release_answer(order, metrics, {}, dict.fromkeys((*self.task.metrics, TESTED), "metric"))

    def _answer(self, client: Client, order: Order) -> Answer:
        if not self.discretion.asks:
            raise PolicyError("this job's [privacy] lets nobody ask questions")
        if order.question in QUESTIONS:
            return self._vouch(client, order)
        function = getattr(self.method, order.question, None)
        declared: Mapping[str, str] | None = getattr(function, "sends", None)
        if function is None or declared is None:
            known = [n for n in dir(type(self.method)) if hasattr(getattr(type(self.method), n), "sends")]
            raise FedreelError(f"this method has no question '{order.question}'", hint=nearest(order.question, known))
        self.door.check_order(declared)
        self.door.check_samples(order.kind, client.data)
        answer: Mapping[str, Value] = function(client, **order.args)
        self._keep(client, order)
        return self._released(order, answer, declared)

    def _vouch(self, client: Client, order: Order) -> Answer:
        """How far the model is to be trusted: what the policy refuses is left out, and nothing changes here."""
        function = QUESTIONS[order.question]
        declared: Mapping[str, str] = function.sends  # type: ignore[attr-defined]
        allowed = self.door.allowed(declared)
        if not any(kind != "count" for kind in allowed.values()):
            self.door.check_order(declared)
        args = {name: client.arg(name, Tensor).cpu() for name in order.args}
        return self._released(order, function(client, allowed.keys(), **args), declared)

    def _released(self, order: Order, answer: Mapping[str, Value], declared: Mapping[str, str]) -> Answer:
        tensors = {n: v for n, v in answer.items() if isinstance(v, Tensor | Weights)}
        numbers = {n: float(v) for n, v in answer.items() if isinstance(v, int | float)}
        for name in answer:
            if name not in tensors and name not in numbers:
                found = type(answer[name]).__name__
                raise FedreelError(f"the answer '{name}' is neither a number nor a tensor", found=found)
        return self.door.release_answer(order, numbers, tensors, declared)

    def _keep(self, client: Client, order: Order) -> None:
        if client.state:
            self.store.save(order.client, order.key, client.state)

    def spare(self) -> nn.Module:
        """Another model of the same kind, for frozen teachers; reused from order to order."""
        if self._spares_used == len(self._spares):
            self._spares.append(copy.deepcopy(self.model).requires_grad_(False))
        self._spares_used += 1
        return self._spares[self._spares_used - 1]
