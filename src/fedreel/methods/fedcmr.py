"""FedCMR-style (after Zong et al. 2021): encoders stay home, the common subspace is averaged by data and categories."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedreel.core.abilities import Temporal, able
from fedreel.core.client import Client
from fedreel.core.federation import Federation
from fedreel.core.method import Method
from fedreel.core.weights import TensorInfo


@dataclass(frozen=True)
class FedCMR(Method):
    """w <- sum_k a_k w_k over the layers that join both modalities; a_k goes with (n_k / n) (c_k / c), n_k the samples
    and c_k the categories of client k. Written from the abstract: the paper's own code was not at hand."""

    sends: ClassVar = {**Method.sends, "samples_x_categories": "label-statistics"}
    needs = (Temporal,)

    def travels(self, tensor: TensorInfo) -> bool:
        return tensor.part != "encoder"

    def run(self, fed: Federation) -> None:
        for _ in fed.rounds():
            fed.weights = fed.average(fed.sample(), fed.weights, by="samples_x_categories").weights

    def local_training(self, client: Client) -> None:
        client.fit()
        categories = able(client.task, Temporal).categories(client.data.train)
        client.numbers["samples_x_categories"] = client.numbers["samples"] * categories
