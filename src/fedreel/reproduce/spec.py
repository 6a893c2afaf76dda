"""What a reproduced table is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedreel.config import Recipe

if TYPE_CHECKING:
    from fedreel.reproduce.work import Work

Metrics = dict[str, float]
Only = Literal["", "playground", "data"]
SEED = "{seed}"  # in a row's settings: the seed of each cell


@dataclass(frozen=True)
class Row:
    """One row: what is run, under which name, and what the paper printed for it."""

    name: str
    settings: Mapping[str, Any]  # recipe settings, "section.key" -> value
    setting: Mapping[str, Any] = field(default_factory=dict)  # how the row is labelled beside its name
    paper: Mapping[str, float] = field(default_factory=dict)  # metric -> printed value
    compute: Callable[[Recipe], Metrics] | None = None  # instead of a run: what needs no training (chance, people)
    only: Only = ""  # a row for the playground, or for given data
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # settings to choose, each with its values
    usual: Mapping[str, Any] = field(default_factory=dict)  # settings that fit its data but do not make it what it is
    reaches: Mapping[str, float] = field(default_factory=dict)  # from these values on, settings come to what it has
    untouched: tuple[str, ...] = ()  # settings that it leaves as they are, and that make it what it is
    run_as: str = ""  # the name of a row of another table that has the same settings: its cells are this row's, too
    as_long_as: str = ""  # the label of another row: it has as many rounds as fit into the time of that one's
    chosen_by: Row | None = None  # a row with the same grid: what is best for that one is taken for this one, too
    needs: Callable[[], object] | None = None  # raises where a package is missing that only some rows need

    @property
    def label(self) -> str:
        """Its name and what tells it from rows of the same name."""
        return " ".join((self.name, *(f"{key} {value}" for key, value in self.setting.items())))

    @property
    def tries(self) -> list[dict[str, Any]]:
        """All settings that the grid holds; none without a grid."""
        return [dict(zip(self.grid, values)) for values in product(*self.grid.values())] if self.grid else []

    def has(self, text: str) -> bool:
        """Whether the text is in its name or setting; of `A & B`, both; of `A | B`, one of them. `=A` is the whole of
        one."""
        words = (self.name, *(f"{key} {value}" for key, value in self.setting.items()))

        def there(part: str) -> bool:
            return part[1:].strip() in words if part.startswith("=") else any(part in word for word in words)

        return any(all(there(part.strip()) for part in choice.split("&")) for choice in text.split("|"))


@dataclass(frozen=True)
class Choose:
    """How rows with a grid get their settings: all that it holds are run once, under seed 0 and with `settings`, which
    keep the choosing apart from what the table reports (`where`, in words); `rows` goes over these for rows that have a
    text, as in a scale. Settings of rows and tables that are named in `without` are left out: what only a figure reads
    need not be there to choose by, and tables share their tries. The best in `metric`, which is one of the run's own or
    comes from `derive`, are taken. Numbers that are named in `beyond` are to be between worse ones: as long as the best
    is the least or the largest that was tried, the next beyond it is tried, too (1, 3, 10, 30, ...). Settings that are
    named in `fixed` are not chosen: all rows have the recipe's."""

    metric: str
    settings: Mapping[str, Any]
    where: str
    higher: bool = True  # whether more is better
    rows: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    derive: tuple[Callable[[Path], Metrics], ...] = ()  # functions that read the metric off a finished run's folder
    without: tuple[str, ...] = ()
    beyond: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()

    def settings_of(self, row: Row) -> dict[str, Any]:
        """What a row is tried with."""
        settings = dict(self.settings)
        for text, changed in self.rows.items():
            settings |= changed if row.has(text) else {}
        return settings


@dataclass(frozen=True)
class Scale:
    """How large: the recipe it starts from, seeds, settings for all rows, and those for given data only, where `rows`
    goes over what rows say themselves: the settings of each whose name or setting has a text (`A & B`: both), later
    ones last. `over` goes over all others: what a user wants changed. Without a rule to `choose` by, rows are run as
    they are and their grids play no part."""

    recipe: str
    seeds: tuple[int, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)
    rows: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    over: Mapping[str, Any] = field(default_factory=dict)
    choose: Choose | None = None  # on the playground
    choose_given: Choose | None = None  # on given data: on their validation part
    timed: int = 0  # rounds by which rows are timed that are to be as long as others; 0: they have the rounds they have


@dataclass(frozen=True)
class Claim:
    """What the paper says of two rows: the first is better in this metric. `settings`: what is said of the first and of
    the second row's setting, where the claim compares two settings or is made of some only; whatever is not said of
    either is the same in both. `than`: the second row's metric, where it is another. `second`: the table that has the
    second row, where it is another of the same system; both must be run on the same data. `ours`: the paper does not
    say so, but its idea asks for it (a control is beaten, or another measure agrees). `printed`: the paper's numbers,
    where they are not those of the rows: rows of ours may stand for rows of the paper that began with other weights. A
    metric may be a pattern: the first that fits is meant."""

    better: str
    worse: str
    metric: str
    higher: bool = True  # whether more is better
    ours: bool = False
    settings: tuple[Mapping[str, Any], Mapping[str, Any]] = field(default=({}, {}))
    than: str = ""
    second: str = ""
    printed: tuple[float | None, float | None] = (None, None)

    @property
    def metrics(self) -> tuple[str, str]:
        return self.metric, self.than or self.metric


@dataclass(frozen=True)
class Table:
    """A sweep. `factor` turns our metrics into the paper's unit (100 for percent); `plain` metrics are left as they
    are. The functions in `derive` add metrics that they read off a finished run's folder. Rows with the same name are
    told apart by their `setting`; a claim is checked within each setting, unless it compares two. A metric may be a
    pattern such as `top1/*`."""

    rows: tuple[Row, ...] | Callable[[Path | None], tuple[Row, ...]]  # a function where they depend on the given data
    metrics: tuple[str, ...]
    scales: Mapping[str, Scale]
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    factor: float = 1.0
    plain: tuple[str, ...] = ()
    derive: tuple[Callable[[Path], Metrics], ...] = ()
    claims: tuple[Claim, ...] = ()
    follow: tuple[str, ...] = ()  # settings that are set to the seed as well: data.seed, for another split with each
    adapt: Callable[[Path], Mapping[str, Any]] | None = None  # settings that given data ask for
    relate: Callable[[Sequence[tuple[Row, Path]]], Sequence[Metrics]] | None = None  # what rows show beside each other:
    # for the finished cells of one seed, more metrics for each
    remark: Callable[[Sequence[tuple[Row, Sequence[Path]]]], Sequence[str]] | None = None
    # notes on the rows, each with its finished cells of all seeds. Both read of a cell what its summary says and what
    # `derive` read off it, and nothing else: cells that were run elsewhere have no more
    work: Callable[[Recipe, Path], Mapping[str, Work]] | None = None  # what a run on these data takes, and what is read
    # off it by functions of these names

    def rows_for(self, data: Path | None) -> tuple[Row, ...]:
        """The rows that make sense for the playground (None), or for given data."""
        rows = self.rows(data) if callable(self.rows) else self.rows
        return tuple(row for row in rows if row.only in ("", "playground" if data is None else "data"))
