"""Small methods that between them use every way in which server and clients can talk; for engine conformance."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import torch
from torch import Tensor

from fedreel.core.aggregate import Mean
from fedreel.core.client import Client
from fedreel.core.federation import Federation
from fedreel.core.method import Method, question
from fedreel.core.update import Answer
from fedreel.core.weights import TensorInfo, Weights
from fedreel.fields import Word
from fedreel.methods.fedavg import FedAvg
from fedreel.methods.fedvmr import FedVMR

PHASES = ("keys", "shares", "masked", "agree", "open")  # of a secure sum


@dataclass(frozen=True)
class Chains(Method):
    """Two chains side by side; inside one, each client starts from its predecessor's model."""

    sees = "each"

    def run(self, fed: Federation) -> None:
        for _ in fed.rounds():
            mean = Mean()
            for update in fed.train_chains([fed.clients[::2], fed.clients[1::2]], fed.weights):
                mean.add(update.weights, update.samples)
            fed.weights = mean.value


@dataclass(frozen=True)
class Questions(Method):
    """Clients answer with numbers and tensors, asked with numbers, tensors and models; the answers steer the mean."""

    sees = "each"

    @question(spread="derived-number", centre="features")
    def summary(self, client: Client, scale: float, around: Tensor, other: Weights, loud: bool) -> dict[str, object]:
        x = client.data.train.tensors[0] * scale
        client.state.numbers["asked"] = float(client.state.numbers.get("asked", 0.0)) + 1.0
        spread = float((x - around).norm()) + client.test_loss(other) + client.state.numbers["asked"]
        return {"spread": spread if loud else 0.0, "centre": x.mean(0).to(torch.bfloat16)}

    def run(self, fed: Federation) -> None:
        for _ in fed.rounds():
            around = torch.full((2,), 0.25, dtype=torch.float64)
            answers = fed.ask(fed.clients, "summary", scale=1.5, around=around, other=fed.weights, loud=True)
            weight = {a.client: a["spread"] + float(a.tensor("centre").float().norm()) for a in answers}
            mean = Mean()
            for update in fed.train(fed.clients, fed.weights):
                mean.add(update.weights, weight[update.client])
            fed.weights = mean.value


@dataclass(frozen=True)
class SeveralModels(Method):
    """Two global models; a client gets both, takes the one that fits it better and trains it."""

    sees = "each"

    sends: ClassVar = {**Method.sends, "choice": "derived-number"}

    def run(self, fed: Federation) -> None:
        if "other" not in fed.models:
            fed.models["other"] = fed.weights * 0.5
        for _ in fed.rounds():
            means = [Mean(), Mean()]
            for update in fed.train(fed.sample(), {"global": fed.models["global"], "other": fed.models["other"]}):
                means[int(update["choice"])].add(update.weights, update.samples)
            for name, mean in zip(("global", "other"), means):
                if mean.total:
                    fed.models[name] = mean.value

    def local_training(self, client: Client) -> None:
        losses = [client.test_loss(w) for w in client.models.values()]
        choice = min(range(len(losses)), key=losses.__getitem__)
        client.load(list(client.models.values())[choice])
        client.fit()
        client.numbers["choice"] = float(choice)

    def evaluate(self, fed: Federation) -> None:
        fed.evaluate({c: fed.models["other" if i % 2 else "global"] for i, c in enumerate(fed.clients)})


@dataclass(frozen=True)
class PrivateState(Method):
    """The head stays with its client, and so does a counter that changes how the client trains."""

    sees = "each"

    def travels(self, tensor: TensorInfo) -> bool:
        return tensor.part == "backbone"

    def run(self, fed: Federation) -> None:
        for _ in fed.rounds():
            mean = Mean()
            for update in fed.train(fed.sample(), fed.weights):
                mean.add(update.weights, update.samples)
            fed.weights = mean.value

    def local_training(self, client: Client) -> None:
        turn = int(client.state.numbers.get("turn", 0)) + 1
        client.state.numbers["turn"] = turn
        client.state.tensors["memory"] = client.weights().flat[torch.float32][:3].clone() * turn
        client.fit(epochs=turn)


@dataclass(frozen=True)
class Lossy(FedAvg):
    """Secure sums in which the answers of clients get lost, although they did what they were asked: nobody's in the
    first round, then one client's in each phase, then those of `most`."""

    most: int = 3

    def run(self, fed: Federation) -> None:
        ask = fed.secure

        def secure(question: str, args: Mapping[str, Any], models: Any, at_least: float) -> Iterator[Answer]:
            phase = PHASES[fed.round % len(PHASES)]
            gone = 0 if fed.round == 1 else 1 if fed.round <= 1 + len(PHASES) else self.most
            lost = fed.clients[fed.round % 5 :][:gone] if question == phase else ()
            return (answer for answer in ask(question, args, models, at_least) if answer.client not in lost)

        with mock.patch.object(fed, "secure", secure):
            super().run(fed)


@dataclass(frozen=True)
class Slow(PrivateState):
    """The same, with time to be killed in: so many seconds, or until a round's file is in the folder `gate`, in which
    clients leave one each when they have come to it. See `killing.working` and `killing.let_go`."""

    seconds: float = 5.0
    gate: Word = ""  # so that sites take it, whatever it names

    def local_training(self, client: Client) -> None:
        super().local_training(client)
        if not self.gate:
            time.sleep(self.seconds)
            return
        (Path(self.gate) / f"{client.name}.{client.round}").touch()
        deadline = time.monotonic() + 240
        while not (Path(self.gate) / str(client.round)).exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"round {client.round} is not let go")
            time.sleep(0.05)


@dataclass(frozen=True)
class Where(Slow):
    """The same, and a file in a folder says on which host a client was worked for, and by which process."""

    folder: str = ""

    def local_training(self, client: Client) -> None:
        host = os.stat("/proc/self/ns/net").st_ino
        (Path(self.folder) / f"{client.name}.{client.round}.{host}.{os.getpid()}").touch()
        super().local_training(client)


@dataclass(frozen=True)
class Held(FedVMR):
    """FedVMR in which one client does not begin before another one, of another group, has ended."""

    folder: str = ""
    held: str = ""
    until: str = ""

    def local_training(self, client: Client) -> None:
        deadline = time.monotonic() + 240
        while client.name == self.held and not (Path(self.folder) / self.until).exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.until} has not trained")
            time.sleep(0.05)
        super().local_training(client)
        (Path(self.folder) / client.name).touch()
