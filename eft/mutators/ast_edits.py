"""Random small edits of a Python program, found on its syntax tree and made in its text.

`propose(code, rng)` gives a `Change` whose child parses, differs from the parent as a tree, and differs in text on
one line (or by one inserted, deleted, doubled or swapped statement): nodes are located by their positions and patched
in place, so layout and comments stay and the diff says exactly what happened. Only code between EVOLVE-BLOCK markers
is touched, where a program has them.

Kinds of edits, and what each is good for:
    number      scale, nudge or flip the sign of a constant — by far the most useful on programs with named constants
    operator    another arithmetic operator (+ - * /), also in `+=`
    compare     another comparison (< <= > >= == !=)
    boolean     `and` for `or`, or a negated condition
    name        another name that is in scope
    wrap        abs(), min(), max(), a factor, a root around an expression
    term        one more statement `x = x + c * y` after an assignment to x
    statement   delete, double, or swap with the next

Limits: it knows no types, so some children raise when they run; programs nested hundreds deep are left alone.
"""

from __future__ import annotations

import ast
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from eft.edits import changes_syntax, parse_python

# How often each kind is tried. Chosen on the shipped training tasks: constants improve most often, structure opens
# new ground.
WEIGHTS = {
    "number": 55, "operator": 7, "compare": 5, "boolean": 3, "name": 8, "wrap": 6, "term": 10, "statement": 6,
}  # fmt: skip
KINDS = {"all": tuple(WEIGHTS), "numbers": ("number",)}

_START, _END = "EVOLVE-BLOCK-START", "EVOLVE-BLOCK-END"
_ARITHMETIC = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_COMPARISONS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
_BODIES = ("body", "orelse", "finalbody")
_SIMPLE = (ast.Assign, ast.AugAssign, ast.Expr, ast.If, ast.For, ast.While)


@dataclass(frozen=True)
class Change:
    """One edit. `child`: the whole program after it; `kind`: one of WEIGHTS."""

    child: str
    kind: str


class Source:
    """A program as text and as tree, with what the edits ask of it."""

    def __init__(self, code: str, tree: ast.Module) -> None:
        self.code = code
        self.lines = code.split("\n")
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line) + 1)
        self.allowed = allowed_lines(self.lines)
        self.tree = tree
        self.parent: dict[ast.AST, ast.AST] = {}
        self.nodes: list[ast.AST] = []
        # Before Python 3.12 the parts of an f-string have positions that are not theirs.
        hidden = {part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
        for node in ast.walk(tree):
            for child in ast.iter_child_nodes(node):
                self.parent[child] = node
            if (
                node not in hidden
                and hasattr(node, "lineno")
                and all(self.allowed[n - 1] for n in range(node.lineno, node.end_lineno + 1))
            ):
                self.nodes.append(node)
        self.modules = {
            (alias.asname or alias.name).split(".")[0]
            for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names
        }  # fmt: skip

    def offset(self, line: int, column: int) -> int:
        """Offset in the text of a position in the tree (lines from 1, columns in UTF-8 bytes)."""
        text = self.lines[line - 1]
        return self.starts[line - 1] + (
            column if text.isascii() else len(text.encode()[:column].decode("utf-8", "ignore"))
        )

    def span(self, node: ast.AST) -> tuple[int, int]:
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)

    def text(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return self.code[start:end]

    def patch(self, start: int, end: int, new: str) -> str:
        return self.code[:start] + new + self.code[end:]

    def replace(self, node: ast.AST, new: str) -> str:
        return self.patch(*self.span(node), new)

    def one_line(self, *types: type[ast.AST]) -> list[ast.AST]:
        """Nodes of these types that may change and stand on one line."""
        return [n for n in self.nodes if isinstance(n, types) and n.lineno == n.end_lineno]

    def function(self, node: ast.AST) -> ast.FunctionDef | None:
        """The innermost function around a node."""
        while node in self.parent:
            node = self.parent[node]
            if isinstance(node, ast.FunctionDef):
                return node
        return None

    def names(self, node: ast.AST) -> list[str]:
        """Names that hold plain values where `node` stands: arguments, earlier locals, the module's constants.
        Sorted."""
        found, function = set(), self.function(node)
        for scope in (self.tree, function):
            for child in (
                ast.walk(scope) if isinstance(scope, ast.FunctionDef) else ast.iter_child_nodes(scope or ast.Module())
            ):
                if isinstance(child, ast.Assign) and child.end_lineno < node.lineno and not _is_container(child.value):
                    found |= {t.id for t in child.targets if isinstance(t, ast.Name)}
                elif isinstance(child, ast.arg):
                    found.add(child.arg)
        around = node
        while around in self.parent:  # loop variables, inside their loops only
            around = self.parent[around]
            if isinstance(around, ast.For) and isinstance(around.target, ast.Name):
                found.add(around.target.id)
        return sorted(found - self.modules)


def allowed_lines(lines: list[str]) -> list[bool]:
    """For each line: may it change? All may where the program has no markers; marker lines never do."""
    marked = any(_START in line for line in lines)
    inside, allowed = not marked, []
    for line in lines:
        if _START in line or _END in line:
            inside = _START in line or not marked
            allowed.append(False)
        else:
            allowed.append(inside)
    return allowed


def _is_container(value: ast.AST) -> bool:
    return isinstance(value, ast.List | ast.Dict | ast.Set | ast.Tuple | ast.ListComp | ast.DictComp | ast.SetComp)


def propose(code: str, rng: random.Random, kinds: tuple[str, ...] = KINDS["all"], tries: int = 60) -> Change | None:
    """One random edit of `code`, or None where none was found (not Python, nothing to change). Deterministic given
    `rng`."""
    return next(stream(code, rng, kinds, tries), None)


def stream(code: str, rng: random.Random, kinds: tuple[str, ...] = KINDS["all"], tries: int = 60) -> Iterator[Change]:
    """Random edits of `code`, without end while there are any: repeats are possible. Stops after `tries` failures in
    a row."""
    tree = parse_python(code)
    if tree is None or "\r" in code.replace("\r\n", ""):  # Python ends a line there, too; positions would be wrong
        return
    source = Source(code, tree)
    weights = [WEIGHTS[k] for k in kinds]
    failures = 0
    while failures < tries:
        kind = rng.choices(kinds, weights)[0]
        try:
            child = _MAKERS[kind](source, rng)
        except RecursionError:
            return
        if child is not None and child != code and changes_syntax(code, child):
            failures = 0
            yield Change(child, kind)
        else:
            failures += 1


# ---- numbers -----------------------------------------------------------------------------------------------------


def format_number(value: float, step: float) -> str:
    """A float as source text, with two digits of `step` (a change of 0.003 is worth four decimals, one of 20 none)."""
    decimals = 2 - math.ceil(math.log10(abs(step))) if step else 6
    text = f"{value:.{min(max(decimals, 0), 12)}f}"
    if "." not in text:
        return text + ".0"
    text = text.rstrip("0")
    return text + "0" if text.endswith(".") else text


def _numbers(source: Source) -> list[ast.Constant]:
    """Numeric constants; those that count or index rather than measure are left out nine times in ten by `_number`."""
    return [n for n in source.one_line(ast.Constant) if type(n.value) in (int, float) and math.isfinite(n.value)]


def _counts(source: Source, node: ast.Constant) -> bool:
    """Is this whole number a count or an index (an argument of range, a subscript)? Changing it mostly breaks a
    program."""
    around = source.parent.get(node)
    while isinstance(around, ast.BinOp | ast.UnaryOp):
        around = source.parent.get(around)
    if isinstance(around, ast.Subscript):
        return True
    return isinstance(around, ast.Call) and isinstance(around.func, ast.Name) and around.func.id == "range"


def _number(source: Source, rng: random.Random) -> str | None:
    nodes = _numbers(source)
    if not nodes:
        return None
    node = rng.choice(nodes)
    value = node.value
    if isinstance(value, int) and (_counts(source, node) and rng.random() < 0.9):
        return None
    signed = source.parent.get(node)
    negative = isinstance(signed, ast.UnaryOp) and isinstance(signed.op, ast.USub)
    target = signed if negative else node
    if negative:
        value = -value
    return source.replace(target, _safe(another_number(value, rng), source, target))


def another_number(value: int | float, rng: random.Random) -> str:
    """A number near `value`, or of the other sign, as source text: half of the whole numbers stay whole."""
    if isinstance(value, int) and not isinstance(value, bool) and rng.random() < 0.5:
        return str(value + whole_step(value, rng))
    choice = rng.random()
    if value == 0:
        step = rng.choice((-1, 1)) * 10 ** rng.uniform(-3, 0)
        new = step
    elif choice < 0.08:
        new, step = -value, value
    elif choice < 0.35:
        new = value * rng.choice((0.5, 0.8, 0.9, 1.1, 1.25, 1.5, 2.0, 3.0))
        step = new - value
    else:
        step = rng.choice((-1, 1)) * abs(value) * 10 ** rng.uniform(-1.7, -0.2)
        new = value + step
    return format_number(new, step)


def whole_step(value: int, rng: random.Random) -> int:
    """By how much a whole number may move: a little for small ones, a share for large ones."""
    if abs(value) < 20:
        return rng.choice((-2, -1, 1, 2))
    return round(value * rng.choice((-0.5, -0.2, -0.1, 0.1, 0.2, 0.5)))


def _safe(text: str, source: Source, target: ast.AST) -> str:
    """A negative number in parentheses where it would otherwise join an operator (2 ** -1 is fine, a - -1 is not
    nice)."""
    around = source.parent.get(target)
    return f"({text})" if text.startswith("-") and isinstance(around, ast.BinOp) else text


# ---- operators, comparisons, conditions --------------------------------------------------------------------------


def _between(source: Source, left: ast.AST, right: ast.AST, old: str, new: str) -> str | None:
    """Replace the operator that stands between two neighbouring operands."""
    start, end = source.span(left)[1], source.span(right)[0]
    gap = source.code[start:end]
    at = gap.find(old)
    return None if at < 0 else source.patch(start + at, start + at + len(old), new)


def _operator(source: Source, rng: random.Random) -> str | None:
    nodes = [n for n in source.one_line(ast.BinOp, ast.AugAssign) if type(n.op) in _ARITHMETIC]
    if not nodes:
        return None
    node = rng.choice(nodes)
    old = _ARITHMETIC[type(node.op)]
    new = rng.choice([o for o in _ARITHMETIC.values() if o != old])
    if isinstance(node, ast.AugAssign):
        return _between(source, node.target, node.value, old + "=", new + "=")
    # Looser operators would regroup the expression around them, so the whole of it is kept together.
    child = _between(source, node.left, node.right, old, new)
    if child is None or new in "*/" or not isinstance(source.parent.get(node), ast.BinOp):
        return child
    start, end = source.span(node)
    if source.code[start - 1 : start] == "(" and source.code[end : end + 1] == ")":
        return child
    return child[:start] + "(" + child[start:end] + ")" + child[end:]


def _compare(source: Source, rng: random.Random) -> str | None:
    nodes = [n for n in source.one_line(ast.Compare) if type(n.ops[0]) in _COMPARISONS]
    if not nodes:
        return None
    node = rng.choice(nodes)
    old = _COMPARISONS[type(node.ops[0])]
    return _between(
        source, node.left, node.comparators[0], old, rng.choice([o for o in _COMPARISONS.values() if o != old])
    )


def _boolean(source: Source, rng: random.Random) -> str | None:
    nodes: list[ast.AST] = source.one_line(ast.BoolOp)
    nodes += [n.test for n in source.nodes if isinstance(n, ast.If | ast.While) and n.test.lineno == n.test.end_lineno]
    if not nodes:
        return None
    node = rng.choice(nodes)
    if isinstance(node, ast.BoolOp) and rng.random() < 0.7:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        return _between(source, node.values[0], node.values[1], old, new)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return source.replace(node, source.text(node.operand))
    return source.replace(node, f"not ({source.text(node)})")


# ---- names, expressions, terms -----------------------------------------------------------------------------------


def _name(source: Source, rng: random.Random) -> str | None:
    nodes = []
    for node in source.one_line(ast.Name):
        around = source.parent.get(node)
        called = isinstance(around, ast.Call) and around.func is node
        if isinstance(node.ctx, ast.Load) and not called and not isinstance(around, ast.Attribute):
            nodes.append(node)
    if not nodes:
        return None
    node = rng.choice(nodes)
    others = [n for n in source.names(node) if n != node.id]
    return source.replace(node, rng.choice(others)) if others else None


def _values(source: Source) -> list[ast.AST]:
    """Expressions on the right of assignments, and their operands: where a value can be wrapped."""
    found: list[ast.AST] = []
    for node in source.one_line(ast.Assign, ast.AugAssign, ast.Return):
        if node.value is None or _is_container(node.value) or isinstance(node.value, ast.Constant):
            continue
        found.append(node.value)
        found += [n for n in ast.walk(node.value) if isinstance(n, ast.BinOp | ast.Name) and n is not node.value]
    return [n for n in found if not _is_function(source, n)]


def _is_function(source: Source, node: ast.AST) -> bool:
    around = source.parent.get(node)
    return isinstance(around, ast.Attribute) or (isinstance(around, ast.Call) and around.func is node)


def _wrap(source: Source, rng: random.Random) -> str | None:
    nodes = _values(source)
    if not nodes:
        return None
    node = rng.choice(nodes)
    text = source.text(node)
    constant = rng.choice(("0.1", "0.5", "1.0", "2.0"))
    forms: list[Callable[[], str]] = [
        lambda: f"abs({text})",
        lambda: f"min({text}, {constant})",
        lambda: f"max({text}, {constant})",
        lambda: f"({text}) * {rng.choice(('0.5', '0.8', '1.2', '2.0'))}",
        lambda: f"({text}) ** {rng.choice(('0.5', '2'))}",
    ]
    if "math" in source.modules:
        forms += [lambda: f"math.sqrt(abs({text}))", lambda: f"math.exp({text})", lambda: f"math.sin({text})"]
    new = rng.choice(forms)()
    if isinstance(node, ast.Name):
        new = new.replace(f"({text}) *", f"{text} *").replace(f"({text}) **", f"{text} **")
    joins = not new.endswith(")") or new.startswith("(")  # an operator's operands, not a call
    return source.replace(node, f"({new})" if joins and isinstance(source.parent.get(node), ast.BinOp) else new)


def _term(source: Source, rng: random.Random) -> str | None:
    """Insert `x = x + c * y` (or a product, or a product of two names) below an assignment to x inside a function."""
    nodes = [
        n for n in source.one_line(ast.Assign)
        if source.function(n) is not None and len(n.targets) == 1 and isinstance(n.targets[0], ast.Name)
        and not _is_container(n.value)
    ]  # fmt: skip
    if not nodes:
        return None
    node = rng.choice(nodes)
    name = node.targets[0].id
    around = source.names(node)
    if not around:
        return None
    other, another = rng.choice(around), rng.choice(around)
    constant = rng.choice(("0.01", "0.02", "0.05", "0.1", "0.2", "0.5"))
    sign = rng.choice("+-")
    form = rng.choice((
        f"{name} = {name} {sign} {constant} * {other}",
        f"{name} = {name} {sign} {constant} * {other} * {another}",
        f"{name} = {name} * (1 {sign} {constant} * {other})",
        f"{name} = {name} {sign} {constant}",
    ))  # fmt: skip
    indent = source.lines[node.lineno - 1][
        : len(source.lines[node.lineno - 1]) - len(source.lines[node.lineno - 1].lstrip())
    ]
    end = source.starts[node.end_lineno] - 1
    return source.patch(end, end, f"\n{indent}{form}")


# ---- statements --------------------------------------------------------------------------------------------------


def _statement(source: Source, rng: random.Random) -> str | None:
    """Delete a statement, double it, or swap it with the next one. Whole lines only."""
    allowed = set(source.nodes)
    spots = []
    for node in ast.walk(source.tree):
        for field in _BODIES:
            body = getattr(node, field, None)
            if isinstance(body, list):
                spots += [(body, i) for i, s in enumerate(body) if s in allowed and _movable(source, s)]
    if not spots:
        return None
    body, i = rng.choice(spots)
    statement = body[i]
    first, last = statement.lineno - 1, statement.end_lineno
    lines = source.lines
    action = rng.choice(("delete", "double", "swap", "swap"))
    if action == "delete":
        return "\n".join(lines[:first] + lines[last:]) if len(body) > 1 else None
    if action == "double":
        return "\n".join(lines[:last] + lines[first:last] + lines[last:])
    after = body[i + 1] if i + 1 < len(body) else None
    if after not in allowed or not _movable(source, after):
        return None
    begin, end = after.lineno - 1, after.end_lineno
    return "\n".join(lines[:first] + lines[begin:end] + lines[last:begin] + lines[first:last] + lines[end:])


def _movable(source: Source, statement: ast.stmt) -> bool:
    """Can this statement go, or go elsewhere, and does that say anything? Not docstrings, not plain constants."""
    if not isinstance(statement, _SIMPLE) or not _own_lines(source, statement):
        return False
    return not (isinstance(statement, ast.Expr | ast.Assign) and isinstance(statement.value, ast.Constant))


def _own_lines(source: Source, statement: ast.stmt) -> bool:
    """Does the statement share none of its lines with others (`a = 1; b = 2`)?"""
    before = source.lines[statement.lineno - 1].encode()[: statement.col_offset].decode("utf-8", "ignore")
    after = source.lines[statement.end_lineno - 1].encode()[statement.end_col_offset :].decode("utf-8", "ignore")
    return not before.strip() and (not after.strip() or after.strip().startswith("#"))


_MAKERS: dict[str, Callable[[Source, random.Random], str | None]] = {
    "number": _number, "operator": _operator, "compare": _compare, "boolean": _boolean, "name": _name, "wrap": _wrap,
    "term": _term, "statement": _statement,
}  # fmt: skip
