"""Which line of a TOML text defines which key, so that complaints can point at it.

`tomllib` keeps no positions. This scanner runs after it, on text that is known to be valid, and
needs only to know where keys and values begin and end.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

Path = tuple[str | int, ...]

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_SCALAR = re.compile(r"[^,\]}\n#]+")
_STRINGS = (
    re.compile(r'"""(?:\\.|[^\\])*?"{3,5}', re.DOTALL),
    re.compile(r"'''.*?'{3,5}", re.DOTALL),
    re.compile(r'"(?:\\.|[^"\\\n])*"'),
    re.compile(r"'[^'\n]*'"),
)


def key_lines(text: str) -> Mapping[Path, int]:
    """Map every key path (array elements by index) to its line, from 1; `text` is valid TOML."""
    scanner = _Scanner(text)
    scanner.document()
    return scanner.lines


def line_of(lines: Mapping[Path, int], path: Path) -> int:
    """Find the line of the longest known part of `path`; 1 when nothing of it is known."""
    for length in range(len(path), 0, -1):
        if (line := lines.get(path[:length])) is not None:
            return line
    return 1


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[Path, int] = {}
        self._counted = (0, 1)
        """A place that was passed, and its line."""
        self._elements: dict[Path, int] = {}
        """Index of the newest element of every array of tables."""

    def document(self) -> None:
        table: Path = ()
        while self._skip(_BLANK):
            if self.text[self.at] == "[":
                table = self._header()
            else:
                self._pair(table)

    def _header(self) -> Path:
        array = self.text.startswith("[[", self.at)
        line = self._line()
        self.at += 2 if array else 1
        names = self._key()
        self.at += 2 if array else 1
        path: Path = (*self._parents(names[:-1], line), names[-1])
        self.lines.setdefault(path, line)
        if array:
            self._elements[path] = self._elements.get(path, -1) + 1
            path = (*path, self._elements[path])
            self.lines[path] = line
        return path

    def _parents(self, names: tuple[str, ...], line: int) -> Path:
        """Inside an array of tables, a name means its newest element."""
        path: Path = ()
        for name in names:
            path = (*path, name)
            self.lines.setdefault(path, line)
            if path in self._elements:
                path = (*path, self._elements[path])
        return path

    def _pair(self, table: Path) -> None:
        line = self._line()
        path = table
        for name in self._key():
            path = (*path, name)
            self.lines.setdefault(path, line)
        self.at += 1  # the equals sign
        self._value(path)

    def _key(self) -> tuple[str, ...]:
        names = []
        while True:
            self._skip(_SPACE)
            if self.text[self.at] in "\"'":
                names.append(self._take_string()[1:-1])
            else:
                names.append(self._take(_BARE))
            self._skip(_SPACE)
            if self.text[self.at] != ".":
                return tuple(names)
            self.at += 1

    def _value(self, path: Path) -> None:
        self._skip(_BLANK)
        opening = self.text[self.at]
        if opening in "\"'":
            self._take_string()
        elif opening == "[":
            self._sequence(path, "]")
        elif opening == "{":
            self._sequence(path, "}")
        else:
            self._take(_SCALAR)

    def _sequence(self, path: Path, closing: str) -> None:
        """An array or an inline table."""
        self.at += 1
        index = 0
        while self._skip(_BLANK) and self.text[self.at] != closing:
            if self.text[self.at] == ",":
                self.at += 1
            elif closing == "}":
                self._pair(path)
            else:
                self.lines[(*path, index)] = self._line()
                self._value((*path, index))
                index += 1
        self.at += 1

    def _take_string(self) -> str:
        return next(taken for pattern in _STRINGS if (taken := self._take(pattern)))

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.at)
        if match is None:
            return ""
        self.at = match.end()
        return match.group()

    def _skip(self, pattern: re.Pattern[str]) -> bool:
        """Pass over `pattern`; False at the end of the text."""
        self._take(pattern)
        return self.at < len(self.text)

    def _line(self) -> int:
        place, line = self._counted
        self._counted = (self.at, line + self.text.count("\n", place, self.at))
        return self._counted[1]
