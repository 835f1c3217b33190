"""Declarations in the text of a .cu file: functions with their qualifiers, and variables.

The text is cut into tokens once and walked through once, so that the time grows as the text does. It is not understood
as a compiler understands it: templates and macros are taken as they look.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from kernelcheck.faults import CompileError

_TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\n]*|/\*.*?(?:\*/|\Z))
    |(?P<directive>\#(?:\\\r?\n|[^\n])*)
    |(?P<text>R"(?P<fence>[^\s()\\]{0,16})\(.*?(?:\)(?P=fence)"|\Z)|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
    |(?P<name>[A-Za-z_]\w*)
    |(?P<number>\.?\d(?:[eEpP][+-]|[\w.'])*)
    |(?P<mark><<<|>>>|::|->|.)""",
    re.DOTALL | re.VERBOSE,
)
_PAIRS = {")": "(", "]": "[", "}": "{"}
_OPENS = tuple(_PAIRS.values())
_LONGEST = 60  # tokens of a declaration of shared memory
PLAIN = {"int", "unsigned", "float", "double", "bool", "char", "short", "long", "auto", "half"}
_SIZES = {  # bytes
    "char": 1, "bool": 1, "int8_t": 1, "uint8_t": 1, "half": 2, "__half": 2, "nv_bfloat16": 2, "__nv_bfloat16": 2,
    "short": 2, "int16_t": 2, "uint16_t": 2, "int": 4, "unsigned": 4, "float": 4, "half2": 4, "__half2": 4, "long": 8,
    "double": 8, "int2": 8, "float2": 8, "int4": 16, "uint4": 16, "float4": 16,
}  # fmt: skip
_NO_TYPES = {"return", "else", "case", "goto", "delete", "throw", "sizeof"}
_ATTRIBUTES = {
    "__launch_bounds__", "__align__", "alignas", "__attribute__", "__declspec", "noexcept", "throw", "decltype",
    "__cluster_dims__", "__maxnreg__", "static_assert", "extern",
}  # fmt: skip


@dataclass(frozen=True)
class Token:
    """A piece of a text and where it begins; `kind` is "directive", "text", "name", "number" or "mark"."""

    kind: str
    text: str
    start: int


@dataclass(frozen=True)
class Function:
    """A function that is declared outside of functions; `body` are the places of its tokens, none where it has none."""

    name: str
    words: frozenset[str]
    template: bool
    parameters: str
    start: int
    body: range


@dataclass(frozen=True)
class Variable:
    """A variable that is declared outside of functions and classes."""

    name: str
    words: frozenset[str]
    array: bool
    pointer: bool
    start: int


class CudaText:
    """The text of a .cu file, read once: its tokens, functions and variables."""

    def __init__(self, source: str) -> None:
        self.source = source
        matches = [one for one in _TOKEN.finditer(source) if one.lastgroup != "skip"]
        self.tokens = [Token(str(one.lastgroup), one[0], one.start()) for one in matches]
        self.closes = _closes(self.tokens)
        self.functions: list[Function] = []
        self.variables: list[Variable] = []
        self._scope(0, len(self.tokens), "")
        self.kernels = {one.name: one for one in self.functions if "__global__" in one.words}
        bodies = [one for one in self.functions if "__global__" in one.words and one.body and not one.template]
        self.overloads = [one for one in bodies if sum(one.name == other.name for other in bodies) > 1]
        self.makes_kernels = any("__global__" in one.text for one in self.tokens if one.kind == "directive")

    def refusal(self, reason: str, start: int) -> CompileError:
        """Return an error at the line of a place in the text."""
        line = self.source.count("\n", 0, start) + 1
        return CompileError(reason, line, self.source.splitlines()[line - 1])

    def local_arrays(self) -> set[str]:
        """Return the names of arrays that are declared anywhere, but for shared and constant memory."""
        names, words = set(), set[str]()
        for before, token, behind in zip(self.tokens, self.tokens[1:], self.tokens[2:], strict=False):
            words = set() if before.text in (";", "{", "}") else words | {before.text}
            typed = before.text == ">" or (before.kind == "name" and before.text not in _NO_TYPES)
            listed = before.text == "," and bool(words & PLAIN)
            if token.kind == "name" and behind.text == "[" and (typed or listed):
                names |= set() if words & {"__shared__", "__constant__"} else {token.text}
        return names

    def shared_sizes(self) -> dict[str, int]:
        """Return the bytes of an element of each shared array, by its name, where its type is a known one."""
        sizes, size, inside = dict[str, int](), 0, False
        for token, behind in pairwise(self.tokens):
            if token.text in ("__shared__", ";"):
                size, inside = 0, token.text == "__shared__"
            size = _SIZES.get(token.text, size)  # the last word of "unsigned char"
            if inside and size and token.kind == "name" and behind.text == "[":
                sizes[token.text] = size
        return sizes

    def loop_at(self, line: int) -> int:
        """Return `line` if it stands in a loop, else the line at which the next loop begins."""
        begins = [n for n, token in enumerate(self.tokens) if token.text in ("for", "while", "do")]
        loops = [(self._line(n), self._line(self._loop_end(n))) for n in begins]
        if any(first <= line <= last for first, last in loops):
            return line
        return next((first for first, _ in loops if first > line), line)

    def turns_between(self, line: int, other: int) -> bool:
        """Return whether a barrier stands between two lines of one loop, so that one of them runs in the turn after."""
        low, high = sorted((line, other))
        waits = {"__syncthreads", "sync", "__syncwarp"}
        loops = [
            (self._line(n), self._line(self._loop_end(n)))
            for n, one in enumerate(self.tokens)
            if one.text in ("for", "while", "do")
        ]
        between = any(one.text in waits and low <= self._line(n) <= high for n, one in enumerate(self.tokens))
        return between and any(first <= low and high <= last for first, last in loops)

    def _line(self, index: int) -> int:
        start = self.tokens[min(index, len(self.tokens) - 1)].start
        return self.source.count("\n", 0, start) + 1

    def _loop_end(self, index: int) -> int:
        """Return the place of the last token of the statement that begins with the loop at a place."""
        index += 1
        while index < len(self.tokens) and self.tokens[index].text not in (";", "{"):
            index = self.closes[index] + 1
        return self.closes[index] if index < len(self.tokens) else index

    def dynamic(self, index: int) -> tuple[str, str, int] | None:
        """Return name, type and end of the `extern __shared__ type name[];` that begins at a token, if one does."""
        if self.tokens[index].text != "extern":
            return None
        near = range(index, min(index + _LONGEST, len(self.tokens)))
        stop = next((n for n in near if self.tokens[n].text in (";", "{", "=")), index)
        head, n = list[Token](), index + 1
        while n < stop:
            token = self.tokens[n]
            n = self.closes[n] + 1 if token.text in _OPENS else n + 1
            if token.text not in ("volatile", "__align__", "alignas", "("):
                head.append(token)
        shared = [token.text for token in head[:1]] == ["__shared__"] and head[-1].text == "["
        if not shared or len(head) < 4 or self.tokens[stop].text != ";":
            return None
        kind = self.source[head[1].start : head[-2].start].strip()
        return head[-2].text, kind, self.tokens[stop].start + 1

    # ---- what stands outside of functions

    def _scope(self, start: int, stop: int, owner: str) -> None:
        """Read declarations one after the other; `owner` is the name of the class that they stand in."""
        while start < stop:
            start = self._declaration(start, stop, owner)

    def _declaration(self, index: int, stop: int, owner: str) -> int:
        """Read one declaration and return where the next begins."""
        text, following = self.tokens[index].text, self.tokens[index + 1].text if index + 1 < stop else ""
        if self.tokens[index].kind == "directive" or text in "})];":
            return index + 1
        if text in ("public", "private", "protected"):
            return index + 2
        if text == "template" and following == "<":
            index, template = self._behind_angles(index + 1, stop), True
        else:
            template = False
            behind = self.closes[index + 1] + 1 if following == "(" else index
            alone = behind >= stop or self.tokens[behind].text != "{"
            if not owner and text not in _ATTRIBUTES and behind > index and alone:
                return behind  # a macro that stands alone, such as one that makes kernels
        head: list[int] = []  # the places of its tokens outside of brackets
        while index < stop and self.tokens[index].text != ";":
            if self.tokens[index].text == "{" and self._is_body(index, head, template, owner):
                return self.closes[index] + 1
            head.append(index)
            index = self.closes[index] + 1 if self.tokens[index].text in _OPENS else index + 1
        self._plain(head, template, owner)
        return index + 1

    def _behind_angles(self, index: int, stop: int) -> int:
        """Return the place behind the brackets `<…>` that begin at a place."""
        depth = 0
        while index < stop:
            text = self.tokens[index].text
            depth += {"<": 1, ">": -1, ">>>": -3}.get(text, 0)
            index = self.closes[index] + 1 if text in _OPENS else index + 1
            if depth <= 0:
                break
        return min(index, stop)

    def _is_body(self, index: int, head: list[int], template: bool, owner: str) -> bool:
        """Read what stands in braces behind `head`, and return whether the declaration ends with them."""
        words, end = self._words(head), min(self.closes[index], len(self.tokens))
        linkage = len(head) == 2 and self.tokens[head[0]].text == "extern" and self.tokens[head[1]].kind == "text"
        if "namespace" in words or linkage:
            self._scope(index + 1, end, "")
            return True
        if "enum" in words:
            return False
        if self._parameters(head) is not None:
            self._function(head, template, range(index + 1, end))
            return True
        if words & {"class", "struct", "union"}:
            names = [self.tokens[n].text for n in head if self.tokens[n].kind == "name"]
            known = names[: self._before_colon(head, names)]
            name = next((one for one in reversed(known) if one not in _ATTRIBUTES), "")
            self._scope(index + 1, end, name or "struct")
        return False

    def _before_colon(self, head: list[int], names: list[str]) -> int:
        """Return how many of the names stand before the classes that a class is made from."""
        colon = next((n for n in head if self.tokens[n].text == ":"), None)
        return len(names) if colon is None else sum(self.tokens[n].kind == "name" for n in head if n < colon)

    def _words(self, head: list[int]) -> frozenset[str]:
        return frozenset(self.tokens[n].text for n in head if self.tokens[n].kind == "name")

    def _parameters(self, head: list[int]) -> int | None:
        """Return the place in `head` of the bracket with a function's parameters, None where there is no function."""
        for position, n in enumerate(head):
            if self.tokens[n].text == "=" and "operator" not in self._words(head[:position]):
                return None
            before = self.tokens[head[position - 1]] if position else None
            if self.tokens[n].text != "(" or before is None or before.text in _ATTRIBUTES:
                continue
            if before.text == "operator":  # its name is `()`
                continue
            if before.kind == "name" or "operator" in self._words(head[:position]):
                return position
        return None

    def _function(self, head: list[int], template: bool, body: range) -> None:
        position = self._parameters(head)
        assert position is not None
        opens, last = head[position], len(self.tokens)
        begins = next((n for n in range(position) if self.tokens[head[n]].text == "operator"), position - 1)
        end = self.closes[opens]
        inside = self.source[self.tokens[opens].start + 1 : self.tokens[end].start if end < last else None]
        name = "".join(self.tokens[n].text for n in head[begins:position])
        start = self.tokens[head[begins]].start
        self.functions.append(Function(name, self._words(head), template, inside, start, body))

    def _plain(self, head: list[int], template: bool, owner: str) -> None:
        """Read a declaration that ends with a semicolon."""
        words = self._words(head)
        if not head or template or words & {"using", "typedef", "static_assert", "friend", "namespace"}:
            return
        if self._parameters(head) is not None:
            if "default" not in words:
                self._function(head, template, range(0))
            return
        if words & {"class", "struct", "union", "enum"}:
            body = next((place for place, n in enumerate(head) if self.tokens[n].text == "{"), None)
            head = head[2:] if body is None else head[body:]  # what stands behind the type
        value = next((place for place, n in enumerate(head) if self.tokens[n].text in ("=", "[", ",")), len(head))
        names = [n for n in head[:value] if self.tokens[n].kind == "name"]
        if not owner and names and (len(names) > 1 or "{" in self._texts(head)):
            pointer = self.tokens[names[-1] - 1].text in ("*", "&")
            name = self.tokens[names[-1]]
            self.variables.append(Variable(name.text, words, "[" in self._texts(head), pointer, name.start))

    def _texts(self, head: list[int]) -> list[str]:
        return [self.tokens[n].text for n in head]


def _closes(tokens: Sequence[Token]) -> list[int]:
    """Return for each opening bracket the place of its closing one, or the end; for other tokens their own place."""
    closing, waiting = list(range(len(tokens))), []
    for n, token in enumerate(tokens):
        if token.kind == "mark" and token.text in _OPENS:
            waiting.append(n)
            closing[n] = len(tokens)
        elif token.kind == "mark" and waiting and tokens[waiting[-1]].text == _PAIRS.get(token.text):
            closing[waiting.pop()] = n
    return closing
