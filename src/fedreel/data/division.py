"""A recipe's [data] section put into effect: which partitioner, which classes, what each client must have, a share of
the labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedreel.config import DataConfig, build
from fedreel.data.partition import PARTITIONERS
from fedreel.errors import DataError, RecipeError, nearest

NO_OWNERS = (
    """divide them among made-up clients, --set 'data.partition={name="iid", num_partitions=4}',"""
    " or make them one client's, --set data.owner=me"
)


def make_partitioner(table: dict[str, Any]) -> Any:
    """The partitioner that a [data.partition] table names."""
    name = str(table.get("name"))
    if name not in PARTITIONERS:
        raise RecipeError(
            f"unknown partition '{name}'",
            where="[data.partition] name",
            hint=nearest(name, PARTITIONERS),
        )
    return build(PARTITIONERS[name], {k: v for k, v in table.items() if k != "name"}, f"[data.partition] {name}")


def class_names(found: list[str], config: DataConfig) -> list[str]:
    """The recipe's labels, if it names them; otherwise those found."""
    unknown = [label for label in found if config.labels and label not in config.labels]
    if unknown:
        raise DataError(
            "the data have labels that the recipe does not name",
            where=config.source,
            expected=", ".join(config.labels[:12]),
            found=", ".join(unknown[:5]),
            hint="add them to data.labels, or rename them in the data",
        )
    return list(config.labels) or found


def check_training(parts: Mapping[str, tuple[np.ndarray, np.ndarray]], config: DataConfig, hint: str) -> None:
    """Raise if a client (its rows for training, and for testing) has nothing to train on."""
    empty = [client for client, (train, _) in parts.items() if len(train) == 0]
    if empty:
        raise DataError(
            "a client has nothing to train on",
            found=", ".join(empty[:5]),
            where=config.source,
            hint=f"give fewer clients, another partition, {hint}",
        )


def nested_share(labels: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Rows, sorted, that are this share of each class, at least one of it. Those of a smaller share are among them, and
    nothing but the division into classes and the seed decides which they are."""
    if not 0 < share <= 1:
        raise RecipeError("not a share of labelled images", expected="more than 0, at most 1", found=str(share))
    order = np.random.default_rng(seed).permutation(len(labels))
    return first_of_each(labels, order, lambda size: max(1, round(share * size)))


def first_of_each(labels: np.ndarray, order: np.ndarray, count: Callable[[int], int]) -> np.ndarray:
    """In this order, the first of each class, as many as `count` says for a class of some size; sorted."""
    members = (order[labels[order] == label] for label in np.unique(labels))
    return np.sort(np.concatenate([order[:0], *(rows[: count(len(rows))] for rows in members)]))
