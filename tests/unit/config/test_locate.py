"""Line numbers of keys, for any valid TOML."""

from __future__ import annotations

import time
import tomllib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from corald.config.locate import Path, key_lines, line_of

TEXT = '''# a comment = 1
top = 1
"quoted.key" = [ # comment ]
  { a = 1, b = "]" },
  """x
  [no] = header
  """, [1,
  2] ]

[a.b]  # [x]
'c' = { d.e = 'lit#eral', f = [1, 2] }
text = \'\'\'
[not.a.table]
\'\'\'
[[list]]
one = 1
[[list]]
two = "\\"#"
[list.sub]
deep = 1979-05-27T07:32:00Z
[[list.inner]]
x = 1
[[list.inner]]
'''


def test_every_kind_of_key_is_found_on_its_line() -> None:
    lines = key_lines(TEXT)
    expected: dict[Path, int] = {
        ("top",): 2,
        ("quoted.key",): 3,
        ("quoted.key", 0, "b"): 4,
        ("quoted.key", 1): 5,
        ("quoted.key", 2, 1): 8,
        ("a", "b"): 10,
        ("a", "b", "c", "d", "e"): 11,
        ("a", "b", "c", "f"): 11,
        ("a", "b", "text"): 12,
        ("list", 0, "one"): 16,
        ("list", 1, "two"): 18,
        ("list", 1, "sub", "deep"): 20,
        ("list", 1, "inner", 0, "x"): 22,
        ("list", 1, "inner", 1): 23,
    }
    assert {path: lines.get(path) for path in expected} == expected


def test_every_key_that_tomllib_finds_has_a_line() -> None:
    assert set(paths_of(tomllib.loads(TEXT))) <= set(key_lines(TEXT))


def test_the_line_of_an_unknown_key_is_that_of_its_table() -> None:
    assert line_of(key_lines(TEXT), ("a", "b", "missing", 3)) == 10
    assert line_of({}, ("x",)) == 1


def paths_of(data: Any, path: Path = ()):
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in items:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from paths_of(value, (*path, key))


KEYS = st.text("abc", min_size=1, max_size=2)
SCALARS = st.one_of(
    st.integers(), st.booleans(), st.text("a#[]{}=,'\n", max_size=6), st.floats(allow_nan=False)
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3)
)


def write(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return '"' + value.replace("\n", "\\n") + '"'
        case list():
            return "[\n" + ",\n".join(map(write, value)) + "]"
        case dict():
            return "{" + ", ".join(f"{k} = {write(v)}" for k, v in value.items()) + "}"
        case _:
            return repr(value)


@given(st.dictionaries(KEYS, VALUES, max_size=5))
def test_no_generated_document_loses_a_key(document: dict[str, Any]) -> None:
    text = "\n".join(f"{key} = {write(value)}" for key, value in document.items())
    lines = key_lines(text)
    assert set(paths_of(tomllib.loads(text))) <= set(lines)
    for key in document:
        assert text.splitlines()[lines[key,] - 1].startswith(f"{key} = ")


def test_a_large_file_is_searched_once() -> None:
    text = "".join(f"key{number} = 1\n" for number in range(70_000))
    started = time.process_time()
    assert key_lines(text)["key69999",] == 70_000
    assert time.process_time() - started < 6
