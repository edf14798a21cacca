"""Where a module could be wrong: every place of its syntax tree where a small fault can be written."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import chain, pairwise
from typing import NamedTuple

TOKENS = {
    ast.Lt: "< <= >", ast.LtE: "<= < >=", ast.Gt: "> >= <", ast.GtE: ">= > <=", ast.Eq: "== !=", ast.NotEq: "!= ==",
    ast.Is: "is is_not", ast.IsNot: "is_not is", ast.In: "in not_in", ast.NotIn: "not_in in", ast.And: "and or",
    ast.Or: "or and", ast.Add: "+ -", ast.Sub: "- +", ast.Mult: "* /", ast.Div: "/ *", ast.FloorDiv: "// *",
    ast.Mod: "% *", ast.Pow: "** *", ast.BitAnd: "& |", ast.BitOr: "| &",
}  # fmt: skip
"""An operation's token, then what may stand in its place."""
ORDERED = (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)
NO_NUMBER = (ast.JoinedStr, ast.List, ast.Tuple, ast.Dict, ast.ListComp, ast.DictComp)
YES_OR_NO = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
PAIRS = "min max, any all, sum mean, floor ceil, argmin argmax, zeros ones, zeros_like ones_like, new_zeros new_ones"
METHODS = {a: b for pair in PAIRS.split(", ") for a, b in (pair.split(), pair.split()[::-1])}
FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any", "sum": "max", "sorted": "list"}
SAME_IN_ANY_ORDER = {
    "isinstance",
    "issubclass",
    "min",
    "max",
    "equal",
    "allclose",
    "isclose",
    "maximum",
    "minimum",
    "promote_types",
    "transpose",
}
TEXT_CALL = re.compile(r"(Error|Warning|warn|log(ger)?\.\w+|print|TypeVar|NewType|cast)$")
NO_OUTPUT = {"description", "strict", "frozen", "slots", "repr", "title", "help", "stacklevel"}
"""Keywords whose value changes a text, or nothing that is put out."""
HIDDEN_FIELDS = {"annotation", "returns", "decorator_list", "bases", "exc", "cause"}
HIDDEN = (ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)


class Site(NamedTuple):
    """A place in a module, in bytes, and the texts that could stand there instead."""

    operator: str
    start: int
    end: int
    choices: tuple[str, ...]
    function: str
    """Qualified name of the outermost function, else of the class, else nothing."""
    statement: tuple[int, int]
    """First and last line of the statement; of its head where it has a body."""


def sites(source: str) -> list[Site]:
    """Return every place of a module where a fault can be written."""
    return list(dict.fromkeys(_Finder(source).walk(ast.parse(source), "", False, (1, 1))))


class _Finder:
    def __init__(self, source: str) -> None:
        self.source = source.encode()
        self.lines = [0, *(found.end() for found in re.finditer(b"\n", self.source))]

    def walk(self, node: ast.AST, scope: str, inside: bool, statement: tuple[int, int]) -> Iterator[Site]:
        """Yield the sites of a node and of all its parts that a result can depend on."""
        if _hidden(node):
            return
        if isinstance(node, ast.stmt):
            statement = (node.lineno, node.body[0].lineno - 1 if hasattr(node, "body") else node.end_lineno)
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not inside:
            scope, inside = f"{scope}.{node.name}".lstrip("."), isinstance(node, ast.FunctionDef)
        for operator, start, end, choices in self.changes(node):
            if others := tuple(text for text in choices if text != self.text(start, end)):
                yield Site(operator, start, end, others, scope, statement)
        for name, value in ast.iter_fields(node):
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, ast.AST) and name not in HIDDEN_FIELDS:
                    yield from self.walk(part, scope, inside, statement)

    def changes(self, node: ast.AST) -> Iterator[tuple]:
        """Yield the faults of one node: operator, start, end, texts."""
        match node:
            case ast.Compare(left=left, ops=ops, comparators=others):
                yield from self.tokens("comparison", [left, *others], ops)
                for part in chain.from_iterable(getattr(side, "elts", [side]) for side in (left, *others)):
                    if _is_text(part):
                        yield self.instead("constant", part, repr(part.value + "_"))
            case ast.BoolOp(op=op, values=values):
                yield from self.tokens("boolean", values, [op] * len(values))
            case ast.BinOp(left=left, op=op, right=right):
                if not any(_is_text(side) or isinstance(side, NO_NUMBER) for side in (left, right)):
                    yield from self.tokens("arithmetic", [left, right], [op])
                if isinstance(op, ORDERED):
                    yield self.exchanged(left, right)
            case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
                yield self.instead(
                    "boolean" if isinstance(node.op, ast.Not) else "arithmetic", node, _in(operand)
                )
            case ast.Constant(value=bool(value)):
                yield self.instead("constant", node, str(not value))
            case ast.Constant(value=int(value)):
                yield self.instead("constant", node, str(value + 1), str(value - 1))
            case ast.Constant(value=float(value)):
                small = abs(value) < 1e-6  # a margin: twice as much changes nothing
                yield self.instead(
                    "constant", node, *(["0.1", "0.0"] if small else [f"{value * 2}", f"{value / 2}"])
                )
            case ast.Call():
                yield from self.call(node)
            case ast.Slice(lower=lower, upper=upper):
                yield from self.off_by_one(lower, upper)
            case ast.If(test=test, body=body, orelse=orelse):
                yield self.condition(test, "True", *["False"][: len(orelse)])
                returns = [part for part in body + orelse if isinstance(part, ast.Return)]
                yield from (self.dropped(part) for part in (returns if orelse else [*returns, node]))
            case ast.While(test=test):
                yield self.condition(test)
            case ast.IfExp(test=test):
                yield self.condition(test, "True", "False")
            case ast.comprehension(ifs=tests):
                yield from (self.condition(test, "True") for test in tests)
            case ast.AugAssign(target=target, op=op, value=value):
                yield from self.tokens("arithmetic", [target, value], [op])
                yield self.dropped(node)
            case ast.Raise() | ast.Continue() | ast.Break() | ast.Expr(value=ast.Call() | ast.Yield()):
                yield self.dropped(node)
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
                yield self.dropped(node)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                if any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(value)):
                    yield self.dropped(node)
            case ast.AnnAssign(annotation=annotation, value=value):
                field = isinstance(value, ast.Call) and value.args
                yield from self.default(annotation, value.args[0] if field else value)
            case ast.arguments(args=arguments, kwonlyargs=named):
                defaults = [None] * (len(arguments) - len(node.defaults)) + node.defaults + node.kw_defaults
                for argument, default in zip([*arguments, *named], defaults, strict=False):
                    yield from self.default(argument.annotation, default)

    def call(self, node: ast.Call) -> Iterator[tuple]:
        """Call another function, exchange two arguments, count to one more or less."""
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if other := (FUNCTIONS if isinstance(node.func, ast.Name) else METHODS).get(name):
            end = self.span(node.func)[1]
            yield "function", end - len(name), end, (other,)
        if name not in SAME_IN_ANY_ORDER and not any(isinstance(part, ast.Starred) for part in node.args):
            yield from (self.exchanged(left, right) for left, right in pairwise(node.args))
        if name == "range":
            yield from self.off_by_one(*node.args)

    def default(self, annotation: ast.expr | None, default: ast.expr | None) -> Iterator[tuple]:
        """Choose another of the texts that a literal type admits."""
        for part in ast.walk(annotation) if annotation and _is_text(default) else ():
            if isinstance(part, ast.Subscript) and ast.unparse(part.value) == "Literal":
                values = (value for value in getattr(part.slice, "elts", []) if value.value != default.value)
                yield self.instead("constant", default, *map(ast.unparse, values))

    def condition(self, test: ast.expr, *constants: str) -> tuple:
        """Negate a condition, which exchanges the branches too, or decide it once for all."""
        done = isinstance(test, ast.Compare) and isinstance(test.ops[0], YES_OR_NO)
        done = done or (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not))
        return self.instead("condition", test, *([] if done else [f"not {_in(test)}"]), *constants)

    def off_by_one(self, *nodes: ast.expr | None) -> Iterator[tuple]:
        for node in nodes:
            if node is not None and not isinstance(node, ast.Constant):
                yield self.instead("off by one", node, f"{_in(node)} + 1", f"{_in(node)} - 1")

    def tokens(self, operator: str, operands: list[ast.expr], kinds: list[ast.AST]) -> Iterator[tuple]:
        """Replace each token between two operands."""
        for (left, right), kind in zip(pairwise(operands), kinds, strict=False):
            token, *others = (text.replace("_", " ") for text in TOKENS.get(type(kind), "@").split())
            start, end = self.span(left)[1], self.span(right)[0]
            yield operator, start, end, [self.text(start, end).replace(token, other, 1) for other in others]

    def exchanged(self, left: ast.AST, right: ast.AST) -> tuple:
        (start, middle), (other, end) = self.span(left), self.span(right)
        swapped = self.text(other, end) + self.text(middle, other) + self.text(start, middle)
        return "argument order", start, end, [swapped]

    def dropped(self, node: ast.stmt) -> tuple:
        return self.instead("dropped statement", node, "pass")

    def instead(self, operator: str, node: ast.AST, *choices: str) -> tuple:
        return operator, *self.span(node), choices

    def span(self, node: ast.AST) -> tuple[int, int]:
        first, last = self.lines[node.lineno - 1], self.lines[node.end_lineno - 1]
        return first + node.col_offset, last + node.end_col_offset

    def text(self, start: int, end: int) -> str:
        return self.source[start:end].decode()


def _hidden(node: ast.AST) -> bool:
    """Return whether a node decides a text, a type or nothing at all."""
    match node:
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.FunctionDef(name="__repr__" | "__str__"):
            return True
        case ast.Subscript(value=ast.Name(id="Literal" | "Annotated")):
            return True
        case ast.Call(func=function) | ast.Expr(value=ast.Call(func=function)):
            return TEXT_CALL.search(ast.unparse(function)) is not None
    return isinstance(node, HIDDEN) or getattr(node, "arg", None) in NO_OUTPUT


def _is_text(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _in(node: ast.expr) -> str:
    """Return the text of an expression, in brackets unless it is one word or call."""
    plain = isinstance(node, ast.Name | ast.Constant | ast.Attribute | ast.Call | ast.Subscript)
    return ast.unparse(node) if plain else f"({ast.unparse(node)})"
