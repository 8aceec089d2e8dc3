"""Pools of items and their ledger: what was spent, on what, and what was decided. On disk, append-only, crash-safe.

The value of a state S against the root is V(S) = E[q(S, z) − q(root, z)] over items z, q in [0, 1], both evaluated on
the same items. A pool holds such items in three parts that share no item and no group of items (states of one program):

    screening      to choose among branches           confirmation   to decide about the one frozen winner
    audit          to measure, afterwards, what the decisions were worth

An item decides once. There is no call that evaluates items of one's choice: `claim` hands out unspent items and writes
them to the ledger, on disk, before anybody sees them; whatever happens then, they are spent. The claimant alone gets
them again: a decision that was killed continues with its own claims and the scores that it has, so nothing is spent
twice and nothing is decided on a part. The ledger is a hash chain: a changed or a missing line is told.

    POOL/pool.json       seed, shares, tasks            POOL/items.jsonl     one item a line
    POOL/ledger.jsonl    claims and decisions           POOL/scores/<decision>.jsonl   q of every state on every item
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eft import manifest
from eft.errors import EftError, UsageError

ROLES = ("screening", "confirmation", "audit")
SHARES = (0.25, 0.5, 0.25)
POOL, ITEMS, LEDGER, SCORES = "pool.json", "items.jsonl", "ledger.jsonl", "scores"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")


@dataclass(frozen=True)
class Item:
    """Something to be scored on. `group`: items of one group (states of one program) serve one part of the pool.

    `payload`: JSON data that the host understands; the id is its hash, so that one item cannot be two.
    """

    kind: str
    task: str
    group: str
    payload: dict[str, Any]

    @functools.cached_property
    def id(self) -> str:
        return digest([self.kind, self.task, self.group, self.payload])[:20]


def digest(value: Any) -> str:
    """SHA-256 of a JSON value, in hex."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def canonical(value: Any) -> str:
    """The one way to write a JSON value: what "bit by bit" compares. Floats keep all their digits."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


@contextlib.contextmanager
def locked(file: Path, what: str | None = None) -> Iterator[None]:
    """Hold a lock file. `what` given: raise EftError at once where another process holds it; else wait."""
    with manifest.clear_disk_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(file, "a") as f:
            try:
                fcntl.flock(f, fcntl.LOCK_EX | (fcntl.LOCK_NB if what else 0))
            except OSError:
                raise EftError(f"another process {what}", where=file, way_out="wait for it, or end it") from None
            yield


def append(file: Path, lines: Iterable[str]) -> None:
    """Add whole lines and force them to the disk; what a killed writer left of a line is cut off first."""
    with manifest.clear_disk_errors(file), open(file, "ab+") as f:
        size = f.seek(0, os.SEEK_END)
        f.seek(0)
        whole = f.read().rfind(b"\n") + 1 if size else 0
        if whole < size:
            f.truncate(whole)
        f.write("".join(line + "\n" for line in lines).encode())
        f.flush()
        os.fsync(f.fileno())


def whole_lines(file: Path) -> list[str]:
    """The complete lines of a file; none where it is missing. A torn last line is no line."""
    try:
        text = file.read_bytes()
    except FileNotFoundError:
        return []
    return text[: text.rfind(b"\n") + 1].decode("utf-8").splitlines()


class Pool:
    """One pool. Every method reads the disk: several processes may share it. Raises EftError for a damaged one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            about = json.loads((folder / POOL).read_text(encoding="utf-8"))
            self.seed, self.shares = int(about["seed"]), tuple(about["shares"])
            self.tasks, self.kind = frozenset(about["tasks"]), str(about["kind"])
            self.about: dict[str, Any] = about.get("about", {})
        except FileNotFoundError:
            raise EftError("there is no pool of items", where=folder, way_out="see docs/gate.md, 'Pools'") from None
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise EftError("this is not a pool of items", where=folder / POOL, why=repr(e)) from None
        self._read_items()

    # ---- making one

    @classmethod
    def create(
        cls,
        folder: Path,
        items: Collection[Item],
        *,
        tasks: Collection[str],
        kind: str,
        seed: int = 0,
        shares: tuple[float, float, float] = SHARES,
        about: dict[str, Any] | None = None,
    ) -> Pool:
        """A new pool. `tasks`: names of the suite's gate tasks, the only ones that items may be of.

        Raises UsageError where the folder holds a pool, EftError for items of other tasks (training tasks!), twins,
        or none.
        """
        if (folder / POOL).exists():
            raise UsageError(
                "there is a pool already",
                where=folder,
                why="its items may be spent",
                way_out="extend it, or make another one elsewhere",
            )
        if len(shares) != 3 or min(shares) < 0 or abs(sum(shares) - 1) > 1e-9:
            raise UsageError("the shares of screening, confirmation and audit must add up to 1", why=str(shares))
        if not items:
            raise EftError("a pool without items", where=folder, way_out="record more searches on the gate tasks")
        _check(items, tasks, folder)
        with manifest.building(folder) as aside:
            append(aside / ITEMS, (_line(item) for item in items))
            manifest.write_json(
                aside / POOL,
                {
                    "version": 1,
                    "kind": kind,
                    "seed": seed,
                    "shares": list(shares),
                    "tasks": sorted(tasks),
                    "about": about or {},
                },
            )
        return cls(folder)

    def extend(self, items: Iterable[Item]) -> int:
        """Add items that are new; returns how many. Old ones keep their part and their place in the ledger."""
        with locked(self.folder / ".lock"):
            self._read_items()
            new = [item for item in items if item.id not in self.items]
            _check(new, self.tasks, self.folder)
            append(self.folder / ITEMS, (_line(item) for item in new))
            self._read_items()
        return len(new)

    def _read_items(self) -> None:
        self.items: dict[str, Item] = {}
        for number, line in enumerate(whole_lines(self.folder / ITEMS), 1):
            try:
                value = json.loads(line)
                item = Item(value["kind"], value["task"], value["group"], value["payload"])
            except (ValueError, KeyError, TypeError) as e:
                raise EftError(
                    "an item of this pool cannot be read", where=f"{self.folder / ITEMS}, line {number}", why=repr(e)
                ) from None
            if value.get("id") != item.id or item.task not in self.tasks or item.id in self.items:
                why = (
                    "it is there twice"
                    if item.id in self.items
                    else "it was changed, or is of a task that is not a gate task"
                )
                raise EftError(
                    "an item of this pool is not what was put in",
                    where=f"{self.folder / ITEMS}, line {number}",
                    why=why,
                    way_out="make a new pool",
                )
            self.items[item.id] = item

    def role(self, item: Item) -> str:
        """The part of the pool that an item belongs to, by its group alone: it stays when the pool grows."""
        u = int(digest([self.seed, "role", item.group])[:13], 16) / 16**13
        return ROLES[0] if u < self.shares[0] else ROLES[1] if u < self.shares[0] + self.shares[1] else ROLES[2]

    # ---- the ledger

    def ledger(self) -> list[dict[str, Any]]:
        """All entries. Raises EftError where the chain is broken or an item was claimed twice."""
        entries, last, spent = [], "", set()
        for number, line in enumerate(whole_lines(self.folder / LEDGER), 1):
            where = f"{self.folder / LEDGER}, line {number}"
            try:
                entry = json.loads(line)
                ok = entry.pop("chain") == digest([last, entry])
            except (ValueError, KeyError, AttributeError, TypeError):
                ok = False
            if not ok:
                raise EftError(
                    "the ledger was changed or is damaged",
                    where=where,
                    why="its lines do not follow from each other",
                    way_out="make a new pool",
                )
            if entry["kind"] == "claim":
                twice = spent & set(entry["items"])
                if twice or len(set(entry["items"])) < len(entry["items"]):
                    raise EftError("an item was spent twice", where=where, why=str(sorted(twice)[:1]))
                spent |= set(entry["items"])
            entries.append(entry)
            last = digest([last, entry])
        return entries

    def _write(self, entries: list[dict[str, Any]], entry: dict[str, Any]) -> None:
        last = ""
        for known in entries:
            last = digest([last, known])
        append(self.folder / LEDGER, [canonical({**entry, "chain": digest([last, entry])})])

    def left(self, role: str) -> int:
        """Unspent items of a part."""
        spent = {i for e in self.ledger() if e["kind"] == "claim" for i in e["items"]}
        return sum(1 for item in self.items.values() if item.id not in spent and self.role(item) == role)

    def claim(self, decision: str, role: str, count: int, about: dict[str, Any], batch: int = 0) -> list[Item]:
        """Spend `count` items of a part on a decision, as its `batch`-th portion; the same call again gives the same.

        `about`: what is decided (states, rule); a decision that goes by this name already must be about the same.
        Raises EftError where too few are left, saying how many more are needed.
        """
        if role not in ROLES:
            raise UsageError(f"a pool has no part '{role}'", way_out=f"valid: {', '.join(ROLES)}")
        if not NAME.fullmatch(decision) or count < 1:
            raise UsageError(
                f"'{decision}' cannot name a decision of {count} items",
                way_out="letters, digits, '.', '_' and '-'; at least one item",
            )
        with locked(self.folder / ".lock"):
            entries = self.ledger()
            for e in entries:
                if e["decision"] == decision and e["kind"] == "claim":
                    self.same(e, about, role, decision)
                    if e["batch"] == batch:
                        return [self.items[i] for i in e["items"]]
            if any(e["decision"] == decision and e["kind"] == "decision" for e in entries):
                raise EftError(f"'{decision}' is decided: it cannot spend more items", where=self.folder)
            spent = {i for e in entries if e["kind"] == "claim" for i in e["items"]}
            free = [i for i, item in self.items.items() if i not in spent and self.role(item) == role]
            if len(free) < count:
                raise self.exhausted(role, count, len(free))
            chosen = sorted(free, key=lambda i: digest([self.seed, "order", i]))[:count]
            self._write(
                entries,
                {"kind": "claim", "decision": decision, "role": role, "batch": batch, "items": chosen, "about": about},
            )
        return [self.items[i] for i in chosen]

    def exhausted(self, role: str, count: int, left: int) -> EftError:
        total = sum(self.role(item) == role for item in self.items.values())
        return EftError(
            f"the {role} items of this pool are used up",
            where=self.folder,
            why=f"{count} are asked for, {left} of {total} are unspent",
            way_out=f"record at least {count - left} more {role} items (--set record.extend=true)",
        )

    def same(self, entry: dict[str, Any], about: dict[str, Any], role: str, decision: str) -> None:
        if entry["about"] != json.loads(canonical(about)) or entry["role"] != role:
            raise EftError(
                f"'{decision}' was begun about something else",
                where=self.folder / LEDGER,
                way_out="give the decision another name",
            )

    def claims(self, decision: str) -> list[dict[str, Any]]:
        """The claims of one decision, in order."""
        return [e for e in self.ledger() if e["kind"] == "claim" and e["decision"] == decision]

    def decided(self, decision: str) -> dict[str, Any] | None:
        """What was decided under this name, or None."""
        found = [e["result"] for e in self.ledger() if e["kind"] == "decision" and e["decision"] == decision]
        return found[0] if found else None

    def decide(self, decision: str, result: dict[str, Any]) -> dict[str, Any]:
        """Write down a decision, once: a second one under the name is refused unless it is the same, bit by bit."""
        result = json.loads(canonical(result))
        with locked(self.folder / ".lock"):
            entries = self.ledger()
            for e in entries:
                if e["kind"] == "decision" and e["decision"] == decision:
                    if e["result"] != result:
                        raise EftError(f"'{decision}' was decided already, and otherwise", where=self.folder / LEDGER)
                    return result
            self._write(entries, {"kind": "decision", "decision": decision, "result": result})
        return result

    # ---- scores

    def scores(self, decision: str) -> dict[str, dict[str, float]]:
        """state -> item -> q, as far as they have been evaluated for a decision."""
        found: dict[str, dict[str, float]] = {}
        for line in whole_lines(self.folder / SCORES / f"{decision}.jsonl"):
            value = json.loads(line)
            found.setdefault(value["state"], {})[value["item"]] = float(value["q"])
        return found

    def keep_scores(self, decision: str, state: str, scores: dict[str, float]) -> None:
        """Add the scores of one state; on disk when this returns."""
        append(
            self.folder / SCORES / f"{decision}.jsonl",
            (canonical({"state": state, "item": i, "q": q}) for i, q in scores.items()),
        )

    @contextlib.contextmanager
    def deciding(self, decision: str) -> Iterator[None]:
        """Hold one decision. Raises EftError where another process is at it."""
        with locked(self.folder / SCORES / f".{decision}.lock", "is working on this decision"):
            yield


def _line(item: Item) -> str:
    return canonical(
        {"id": item.id, "kind": item.kind, "task": item.task, "group": item.group, "payload": item.payload}
    )


def _check(items: Collection[Item], tasks: Collection[str], where: Path) -> None:
    """Raises EftError for items of tasks that are not gate tasks, and for twins."""
    strange = sorted({item.task for item in items} - set(tasks))
    if strange:
        raise EftError(
            f"items of '{strange[0]}' cannot be in this pool",
            where=where,
            why="it is not a gate task of the suite: what was trained on proves nothing",
            way_out=f"gate tasks: {', '.join(sorted(tasks)) or 'none'}",
        )
    counted = Counter(item.id for item in items)
    twins = [i for i, n in counted.items() if n > 1]
    if twins:
        raise EftError(
            "the pool's parts would overlap", where=where, why=f"item {twins[0]} is there {counted[twins[0]]} times"
        )


def disjoint(one: Pool, other: Pool) -> None:
    """Raises EftError where two pools share an item or a group: evidence of one would be seen by the other."""
    shared = {i.group for i in one.items.values()} & {i.group for i in other.items.values()}
    if shared:
        raise EftError(
            "the pools overlap",
            where=f"{one.folder} and {other.folder}",
            why=f"{len(shared)} groups of items are in both, {sorted(shared)[0]} among them",
            way_out="record them from different searches",
        )


def refuse_training_on(pool: Pool, tasks: Iterable[str], where: object) -> None:
    """Raises EftError where training data hold a task of the pool."""
    both = sorted(set(tasks) & pool.tasks)
    if both:
        raise EftError(
            f"the training data hold '{both[0]}', a task of the gate's pool",
            where=where,
            way_out="train on tasks of the role train only",
        )
