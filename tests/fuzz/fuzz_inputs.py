"""Bad inputs from good ones: bytes, text, nested values and safetensors files, changed at random."""

from __future__ import annotations

import copy
import json
import string
from collections.abc import Iterator
from random import Random
from typing import Any

NUMBERS = (0, 1, -1, 2, 255, 256, 2**31 - 1, -(2**31), 2**32, 2**53, 2**63 - 1, -(2**63), 2**64, 10**30)
FLOATS = (0.0, -0.0, 0.5, -1.5, 1e-320, 1e-30, 1e30, 1e308, -1e308, float("inf"), float("-inf"), float("nan"))
TEXTS = (
    "", " ", "0", "-1", "nan", "true", "null", "pep", "mean", "default", "../../outside", "/dev/zero", "/", "~",
    "C:\\x", "a" * 300, "a/b", "a:b", "os:path", "fedcue.methods.pep:PEP", "fedcue.methods.base:Method",
    "fedcue.data.readers.digits:Digits", "\x00", "\x1b[31m", "\n", "\u202e", "<script>", "${x}", "%s%n", "{0}", "é", "\ufffd",
)  # fmt: skip
TOKENS = (
    "[", "]", "{", "}", "[[", "]]", '"', "'", '"""', "=", ".", ",", ":", "\\", "\\u0000", "\\ud800", "#", "\n",
    "\r", "\t", "\x00", "\x1b[0m", "0x", "1e999", "-1", "nan", "inf", "true", "null", "1979-05-27", "9" * 5000,
    "[" * 300, "{a=" * 100, "a." * 400, "name", "../", "\u2028",
)  # fmt: skip


def mutated_bytes(random: Random, data: bytes) -> bytes:
    """Return ``data`` with one to four places changed, cut out, doubled or cut off."""
    out = bytearray(data)
    for _ in range(random.randint(1, 4)):
        place = random.randrange(len(out) + 1)
        length = min(random.choice((1, 1, 2, 4, 8, 16, 64)), len(out) - place)
        match random.randrange(8):
            case 0 | 1:
                if length:
                    out[place] ^= 1 << random.randrange(8)
            case 2:
                out[place : place + length] = random.randbytes(length)
            case 3:
                size = random.choice((1, 2, 4, 8))
                number = random.choice(NUMBERS) % 256**size
                out[place : place + size] = number.to_bytes(size, random.choice(("little", "big")))
            case 4:
                del out[place : place + length]
            case 5:
                out[place:place] = random.randbytes(random.choice((1, 4, 64)))
            case 6:
                out[place:place] = out[place : place + length] * random.choice((1, 2, 50))
            case _:
                if random.random() < 0.3:
                    del out[place:]
    return bytes(out)


def mutated_text(random: Random, text: str) -> str:
    """Return ``text`` with one to three lines, letters or tokens changed."""
    for _ in range(random.randint(1, 3)):
        place = random.randrange(len(text) + 1)
        lines = text.split("\n")
        match random.randrange(6):
            case 0:
                text = text[:place] + random.choice(TOKENS) + text[place:]
            case 1:
                text = text[:place] + text[place + random.choice((1, 1, 5, 40)) :]
            case 2:
                text = text[:place] + random.choice(string.printable) + text[place + 1 :]
            case 3:
                lines.insert(random.randrange(len(lines) + 1), random.choice(lines))
                text = "\n".join(lines)
            case 4:
                del lines[random.randrange(len(lines))]
                text = "\n".join(lines)
            case _:
                random.shuffle(lines)
                text = "\n".join(lines)
    return text


def any_value(random: Random, depth: int = 2, deep: float = 0.3) -> Any:
    """Return some value that JSON or TOML could hold, mostly an unusual one."""
    kinds = ("int", "float", "text", "bool", "list", "dict", "deep", "long")
    match random.choices(kinds, (6, 5, 6, 2, 4 * (depth > 0), 3 * (depth > 0), deep, 0.3))[0]:
        case "int":
            return random.choice((*NUMBERS, random.randint(-20, 200), 1 << random.randint(0, 20_000)))
        case "float":
            return random.choice((*FLOATS, random.uniform(-2, 20)))
        case "text":
            return random.choice(TEXTS)
        case "bool":
            return random.random() < 0.5
        case "list":
            return [any_value(random, depth - 1, deep) for _ in range(random.choice((0, 1, 2, 3, 10)))]
        case "dict":
            return {
                random.choice(TEXTS): any_value(random, depth - 1, deep) for _ in range(random.randint(0, 3))
            }
        case "deep":
            value: Any = 0
            for _ in range(random.choice((50, 200, 900))):
                value = random.choice(([value], {"a": value}))
            return value
        case _:
            return [random.choice(NUMBERS)] * 2000


def mutated_tree(random: Random, tree: Any) -> Any:
    """Return nested lists and objects with one or two nodes replaced, removed, renamed or doubled."""
    holder = [copy.deepcopy(tree)]
    for _ in range(random.randint(1, 2)):
        parent, key = random.choice(list(_places(holder)))
        if random.random() < 0.6 or parent is holder:
            parent[key] = any_value(random)
        elif isinstance(parent, list):
            parent.insert(key, parent[key])
        elif random.random() < 0.5:
            del parent[key]
        else:
            parent[random.choice((f"{key}x", str(key)[:-1], "name", *TEXTS))] = parent.pop(key)
    return holder[0]


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(tree) if isinstance(tree, dict) else range(min(len(tree), 50))
    for key in keys:
        yield tree, key
        if isinstance(tree[key], dict | list):
            yield from _places(tree[key])


def json_text(value: Any) -> str:
    """Return JSON, also of values it should not hold; deep ones as far as that goes."""
    try:
        return json.dumps(value)
    except (RecursionError, ValueError):
        return "[" * 3000


def mutated_json(random: Random, text: str) -> str:
    """Return a changed JSON text: its values, or its letters."""
    if random.random() < 0.6:
        return json_text(mutated_tree(random, json.loads(text)))
    return mutated_text(random, text)


def mutated_safetensors(random: Random, data: bytes) -> bytes:
    """Return a changed safetensors file: its bytes, or names, types, shapes and places in its header."""
    if random.random() < 0.3:
        return mutated_bytes(random, data)
    size = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    if random.random() < 0.5:
        header = mutated_tree(random, header)
    else:
        one = header[random.choice([name for name in header if name != "__metadata__"])]
        match random.randrange(3):
            case 0:
                one["shape"] = random.choice(
                    ([], one["shape"][::-1], [*one["shape"], 1], [0, 2**40], [2**62, 4, 0])
                )
            case 1:
                one["dtype"] = random.choice(
                    ("F64", "F16", "BF16", "I64", "I8", "U8", "BOOL", "F8_E4M3", "F4", "C64")
                )
            case _:
                header = dict(zip(random.sample(list(header), len(header)), header.values(), strict=True))
    if random.random() < 0.2:
        body = bytes(random.choice((0, 255, 127)) for _ in range(16)) + body[16:]
    text = json_text(header).encode()
    return len(text).to_bytes(8, "little") + text + body
