"""What a comparison of mutators says in numbers: plain frozen dataclasses, filled by `compare.py`."""

from __future__ import annotations

from dataclasses import dataclass

from eft.evaluate.metrics import Spread
from eft.evaluate.results import MutatorInfo, Search
from eft.evaluate.significance import Test
from eft.evaluate.stats import Mean, Rate


@dataclass(frozen=True)
class Behaviour:
    """What the proposals of some searches were like. Rates are of all proposals; `improves_of_edits` leaves no-ops out.

    `gain`: mean gain per proposal in units of the gap, None where that is undefined. Tokens: None if not billed.
    """

    proposals: int
    valid: Rate | None
    no_op: Rate | None
    improves: Rate | None
    improves_of_edits: Rate | None
    broken: Rate | None  # do not compile
    errors: Rate | None  # fail at run time
    timeouts: Rate | None
    gain: float | None
    distinct: int
    evaluations: int
    prompt_tokens: int | None
    completion_tokens: int | None
    seconds: float
    outcomes: dict[str, int]


@dataclass(frozen=True)
class Cell:
    """One mutator on one task. `raw`, `gap`: the final value. `curve`: (low, median, high) of the best so far per
    proposal, in `curve_unit`, on the instances that the search saw."""

    task: str
    mutator: str
    done: int
    failed: int
    score: Spread | None
    raw: Spread | None
    gap: Spread | None
    area: Spread | None
    gain_start: float | None
    gain_base: float | None
    behaviour: Behaviour
    curve: tuple[tuple[float, float, float], ...]
    curve_unit: str  # gap | raw


@dataclass(frozen=True)
class Row:
    """One mutator over the whole suite."""

    mutator: MutatorInfo
    gap: Mean | None
    area: Mean | None
    by_task: dict[str, float]  # mean gap closed
    behaviour: Behaviour
    done: int
    failed: int


@dataclass(frozen=True)
class Reach:
    """Proposals until the reference's best was reached, over `pairs` paired searches whose reference found something.

    `median` and `reference`: of the mutator and of the reference itself; None where more than half never got there.
    `idle`: paired searches whose reference found nothing, which have no such number.
    """

    pairs: int
    reached: int
    median: float | None
    reference: float | None
    idle: int


@dataclass(frozen=True)
class Needs:
    """How much data a difference of this size needs, to be seen with 80 % power in this report.

    `seeds`: per task, on these tasks. `tasks`: of this kind, at the seeds that there are. None: more than 10,000, or
    not to be told. `seen_here`, `seen_such`: the smallest differences that the present data would show.
    """

    seeds: int | None
    tasks: int | None
    seen_here: float | None
    seen_such: float | None


@dataclass(frozen=True)
class Pair:
    """`mutator` minus `reference`, paired by task and seed. `tasks`: mean differences in gap closed, worst first.

    `difference`: in gap closed; `area`: in area under the curve; `relative`: the paper's relative gain, mean over the
    `relative_tasks` tasks where it is defined. Wins, ties and losses, and `by_sign`, go by the raw values, so they
    exist where no best known value makes a gap. `over_searches`, `over_tasks`: signed-rank tests of the gap closed.
    """

    mutator: str
    reference: str
    difference: Mean | None
    wins: int
    ties: int
    losses: int
    tasks: tuple[tuple[str, float], ...]
    unpaired: int  # searches of `mutator` without a partner
    area: Mean | None = None
    relative: float | None = None
    relative_tasks: int = 0
    over_searches: Test | None = None
    over_tasks: Test | None = None
    by_sign: Test | None = None
    reach: Reach | None = None
    needs: Needs | None = None


@dataclass(frozen=True)
class Transfer:
    """What `mutator` gains over `reference` by domain of the held-out tasks; None where no pair of searches exists."""

    mutator: str
    reference: str
    trained_on: tuple[str, ...]
    gains: tuple[tuple[str, Mean | None], ...]


@dataclass(frozen=True)
class Undefined:
    """A number that does not exist, and why."""

    what: str
    task: str
    mutator: str
    why: str


@dataclass(frozen=True)
class Comparison:
    """Everything that the report says in numbers. `hidden`: tasks whose final value is of hidden instances.

    `notes`: choices that the comparison made by itself, in words.
    """

    rows: tuple[Row, ...]
    cells: tuple[Cell, ...]
    pairs: tuple[Pair, ...]
    undefined: tuple[Undefined, ...]
    failed: tuple[Search, ...]
    transfer: tuple[Transfer, ...] = ()
    scaffolds: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
