"""What a routing policy is compared with on the rows of its task: single models, simple and learned routers, the oracle.

    single: MODEL        everything to one model; `best single` is the one that is best on the search rows
    majority             the model that is best for a data set on the search rows; `best single` for data sets it has not
                         seen. It is told the data sets' names; `by family`: their heads (mmlu-… is one)
    random               a model by lot
    logistic, knn        scikit-learn, on hashed words and the facts of the state: they estimate every model's score, and
                         the model with the best (estimate - price x mean cost) is taken. Their one parameter is chosen by
                         cross-validation over the search rows, with whole data sets left out
    oracle               knows every score: the upper end

All of them learn from the search rows alone and are measured on the hidden rows as policies are.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from eft.errors import UsageError
from eft.loops import Control
from eft.loops.routing_metrics import worth
from eft.loops.routing_score import Game
from eft.loops.routing_table import family

LEARNED = ("logistic", "knn")
STRENGTHS = (0.03, 0.3, 3.0)  # logistic: inverse of the penalty
NEIGHBOURS = (5, 15, 40)
FOLDS = 5
FEATURES = 2**14
_FACTS = ("length", "words", "lines", "choices", "digits", "capitals", "foreign", "questions", "code", "math")

Choices = list[np.ndarray]  # model indices by row, at each of the prices asked
Estimator = Callable[[Any, np.ndarray, Any], np.ndarray]


def check() -> None:
    """Raises UsageError where scikit-learn is missing."""
    if importlib.util.find_spec("sklearn") is None:
        raise UsageError("the learned routers need scikit-learn", way_out="pip install 'evolution-finetuning[routing]', or "
                         "set `routers: []`")  # fmt: skip


def all_of(
    search: Game, hidden: Game, groups: tuple[Sequence[str], Sequence[str]], seeds: Sequence[int], start: float | None,
    routers: Sequence[str] = LEARNED,
) -> list[Control]:  # fmt: skip
    """Every control, once for each seed (only `random` differs between them). `groups`: the data sets of the rows of
    both sides; `start`: what the seed program has on the search rows."""
    singles = search.singles()
    best = int(np.argmax(singles))
    found: list[Control] = []

    def add(name: str, seen: Choices, unseen: Choices, **told: Any) -> None:
        raw = search.value(seen)
        curve = (start, raw if start is None else max(raw, start))
        found.extend(Control(name, s, hidden.value(unseen), curve, 1, **told) for s in seeds)

    for m, model in enumerate(search.models):
        add(f"single: {model}", search.same(m), hidden.same(m), bound=True, note="a single model")
    add("best single", search.same(best), hidden.same(best), note=search.models[best])
    add("majority", *majority(search, hidden, groups, best), note="told the data set's name")
    families = tuple([family(g) for g in side] for side in groups)
    add("majority by family", *majority(search, hidden, families, best), note="told the data set's name")
    for seed in seeds:
        lots = [np.random.default_rng([seed, side]) for side in (0, 1)]
        drawn = [[r.integers(len(g.models), size=len(g.states)) for _ in g.asked]
                 for r, g in zip(lots, (search, hidden), strict=True)]  # fmt: skip
        found.append(Control("random", seed, hidden.value(drawn[1]), (start, search.value(drawn[0])), 1))
    for name in routers:
        seen, unseen, evaluations, note = learned(name, search, hidden, groups[0])
        before = len(found)
        add(name, seen, unseen, note=note)
        found[before:] = [replace(c, evaluations=evaluations) for c in found[before:]]
    value = hidden.bound()
    found += [
        Control("oracle", s, value, (start, search.bound()), 1, bound=True, note="knows every score") for s in seeds
    ]
    return found


def majority(
    search: Game, hidden: Game, groups: tuple[Sequence[str], Sequence[str]], default: int
) -> tuple[Choices, Choices]:
    """The best model of every data set on its search rows, at each price; `default` for unseen data sets."""
    sides: tuple[Choices, Choices] = ([], [])
    for price in search.asked:
        values, best = worth(search.scores, search.costs, price), {}
        for name in set(groups[0]):
            best[name] = int(values[[g == name for g in groups[0]]].mean(axis=0).argmax())
        for side, names in zip(sides, groups, strict=True):
            side.append(np.array([best.get(n, default) for n in names]))
    return sides


# ---- learned routers ---------------------------------------------------------------------------------------------


def _features(game: Game) -> Any:
    """Hashed words and pairs of words, and the facts on a log scale: a sparse matrix of (rows, features)."""
    from scipy.sparse import csr_matrix, hstack
    from sklearn.feature_extraction.text import HashingVectorizer

    words = HashingVectorizer(n_features=FEATURES, ngram_range=(1, 2), alternate_sign=False)
    texts = [f"{s.get('name', '')} {s['prompt']}" for s in game.states]
    facts = np.log1p(np.array([[float(s[f]) for f in _FACTS] for s in game.states]))
    return csr_matrix(hstack([words.transform(texts), csr_matrix(0.1 * facts)]))


def _logistic(strength: float) -> Estimator:
    from sklearn.linear_model import LogisticRegression

    def estimate(known: Any, scores: np.ndarray, asked: Any) -> np.ndarray:
        columns = []
        for right in (scores >= 0.5).T:
            if right.all() or not right.any():
                columns.append(np.full(asked.shape[0], float(right[0])))
                continue
            fitted = LogisticRegression(C=strength, solver="liblinear").fit(
                known, right
            )  # quick: few rows, many columns
            columns.append(fitted.predict_proba(asked)[:, 1])
        return np.array(columns).T

    return estimate


def _knn(neighbours: int) -> Estimator:
    from sklearn.neighbors import KNeighborsRegressor

    def estimate(known: Any, scores: np.ndarray, asked: Any) -> np.ndarray:
        count = min(neighbours, known.shape[0])
        return KNeighborsRegressor(count, metric="cosine").fit(known, scores).predict(asked)

    return estimate


def learned(name: str, search: Game, hidden: Game, groups: Sequence[str]) -> tuple[Choices, Choices, int, str]:
    """(choices on the search rows, on the hidden rows, how many settings were tried, the one that was taken).

    The choices on the search rows are those of the folds, each from a router that has not seen its data sets.
    """
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):  # searches have the cores
        return _learned(name, search, hidden, groups)


def _learned(name: str, search: Game, hidden: Game, groups: Sequence[str]) -> tuple[Choices, Choices, int, str]:
    make, settings = (_logistic, STRENGTHS) if name == "logistic" else (_knn, NEIGHBOURS)
    known, asked = _features(search), _features(hidden)
    folds = _folds(groups)
    tried = []
    for setting in settings:
        estimate = make(setting)
        scores = np.tile(search.scores.mean(axis=0), (len(search.states), 1))
        for fold in folds:
            away = np.isin(np.arange(len(groups)), fold)
            scores[away] = estimate(known[~away], search.scores[~away], known[away])
        seen, price = _by_price(search, scores)
        tried.append((search.value(seen), setting, seen, price))
    _, setting, seen, price = max(tried, key=lambda t: t[0])
    return (
        seen,
        _choose(search, make(setting)(known, search.scores, asked), price),
        len(settings),
        f"{name} {setting:g}",
    )


def _folds(groups: Sequence[str]) -> list[list[int]]:
    """At most FOLDS parts of the rows, no data set in two of them: the largest data sets first, each to the smallest."""
    rows: dict[str, list[int]] = {}
    for i, g in enumerate(groups):
        rows.setdefault(g, []).append(i)
    parts: list[list[int]] = [[] for _ in range(min(FOLDS, len(rows)))]
    for g in sorted(rows, key=lambda g: (-len(rows[g]), g)):
        min(parts, key=len).extend(rows[g])
    return parts if len(parts) > 1 else [list(range(0, len(groups), 2)), list(range(1, len(groups), 2))]


def _choose(search: Game, scores: np.ndarray, prices: Sequence[float]) -> Choices:
    costs = search.costs.mean(axis=0)
    return [(scores - p * costs).argmax(axis=1) for p in prices]


def _by_price(search: Game, scores: np.ndarray) -> tuple[Choices, Sequence[float]]:
    """The choices by estimated scores at the prices asked; for RouterArena's score, which has none, at the best of a
    ladder of prices."""
    if search.objective != "arena":
        return _choose(search, scores, search.asked), search.asked
    ladder = [[p] for p in (0.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)]
    best = max(ladder, key=lambda p: search.value(_choose(search, scores, p)))
    return _choose(search, scores, best), best
