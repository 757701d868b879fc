"""Cells with timestamps, as Cassandra keeps them: tables of a schema, statements, what they change, what they find.

A statement is bound to values and becomes a change of one partition, or a look at one. Changes commute: of two cells
the later one stays, at the same time the deleted one, then the larger one. It knows the words of CQL that are used
here, and says so when it meets others. It must not know what a table is for, nor how many copies of it there are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import eq, le, lt
from typing import Any, Final, TypeAlias

import msgspec

Name: TypeAlias = tuple[Any, ...]
# A column, or a column and the key of an entry in it.
Column: TypeAlias = str | tuple[str, str]

_MARKER: Final = ""
_STATIC: Final = ("static",)
_SPLIT_DEEP: Final = re.compile(r",(?![^(<]*[)>])")


class Unknown(ValueError):
    """A statement or a table that is written in words that nobody has taught this module."""


class Table(msgspec.Struct, frozen=True):
    """A table's shape.

    Attributes:
        name: of it.
        partition: columns of the partition key.
        clustering: columns that order the rows of a partition; True where the largest is first.
        static: columns that a partition has once.
    """

    name: str
    partition: tuple[str, ...]
    clustering: Mapping[str, bool]
    static: frozenset[str]


class Cell(msgspec.Struct, frozen=True):
    """One value with its time; `end` is when it is no more, by the clock of the store."""

    at: int
    value: Any
    end: float | None = None

    def beats(self, other: Cell) -> bool:
        """Whether it stays when both were written."""
        if self.at != other.at:
            return self.at > other.at
        if (self.value is None) != (other.value is None):
            return self.value is None
        if self.value == other.value:
            return (self.end or 0.0) > (other.end or 0.0)
        return bool(self.value is not None and self.value > other.value)


class Condition(msgspec.Struct, frozen=True):
    """What a statement says of clustering columns."""

    columns: tuple[str, ...]
    compare: str
    value: Any

    def holds(self, row: Mapping[str, Any]) -> bool:
        """Whether it is so of a row."""
        found = tuple(row[column] for column in self.columns)
        return _COMPARE[self.compare](found if len(found) > 1 else found[0], self.value)


class Grave(msgspec.Struct, frozen=True):
    """Everything that fits these conditions was deleted at a time."""

    conditions: tuple[Condition, ...]
    at: int


class Partition(msgspec.Struct):
    """Some cells of a partition: all that a replica has, or what a statement changes."""

    rows: dict[Name, dict[Column, Cell]] = msgspec.field(default_factory=dict)
    graves: frozenset[Grave] = frozenset()

    def absorb(self, other: Partition) -> bool:
        """Takes in other cells; returns whether anything is new. The rows themselves are never changed in place."""
        changed = False
        for name, cells in other.rows.items():
            own = self.rows.get(name, {})
            better = {column: cell for column, cell in cells.items() if column not in own or cell.beats(own[column])}
            if better:
                self.rows[name] = {**own, **better}
                changed = True
        if not other.graves <= self.graves:
            self.graves |= other.graves
            changed = True
        return changed

    def live(self, table: Table, now: float) -> Iterator[tuple[Name, dict[str, Any]]]:
        """Yields the rows that are there, each with the values of its columns."""
        for name, row in self.rows.items():
            cells = _live(table, name, row, self.graves, now)
            if name != _STATIC and cells:
                yield name, {column: cell.value for column, cell in cells.items() if isinstance(column, str)}

    def copy(self) -> Partition:
        """Returns what it holds now."""
        return Partition(dict(self.rows), self.graves)


class Change(msgspec.Struct, frozen=True):
    """What a statement does to one partition."""

    table: str
    partition: Name
    cells: Partition


class Look(msgspec.Struct, frozen=True):
    """What a statement wants to know of one partition."""

    table: Table
    partition: Name
    columns: tuple[str, ...]
    conditions: tuple[Condition, ...]
    order: Mapping[str, bool]
    distinct: bool
    limit: int | None

    def answer(self, cells: Partition, now: float) -> list[tuple[Any, ...]]:
        """Returns what a client gets."""
        live = {name: _live(self.table, name, row, cells.graves, now) for name, row in cells.rows.items()}
        static = {column: cell for column, cell in live.pop(_STATIC, {}).items() if cell.value is not None}
        rows = [name for name, row in live.items() if any(cell.value is not None for cell in row.values())]
        for column, descending in reversed(list(self.order.items())):
            place = tuple(self.table.clustering).index(column)
            rows.sort(key=lambda name: name[place], reverse=descending)
        if self.distinct:
            return [self._row(None, static, now)] if rows or static else []
        if self.conditions:
            names = [dict(zip(self.table.clustering, name, strict=True)) for name in rows]
            rows = [name for name, row in zip(rows, names, strict=True) if all(c.holds(row) for c in self.conditions)]
        if self.columns == ("count(*)",):
            return [(len(rows),)]
        if not rows and static and not self.conditions:
            return [self._row(None, static, now)]
        return [self._row(name, {**static, **live[name]}, now) for name in rows[: self.limit]]

    def _row(self, name: Name | None, cells: Mapping[Column, Cell], now: float) -> tuple[Any, ...]:
        keys = dict(zip(self.table.partition, self.partition, strict=True))
        if name is not None:
            keys |= zip(self.table.clustering, name, strict=True)
        return tuple(_value(column, keys, cells, now) for column in self.columns)


def _live(
    table: Table, name: Name, row: Mapping[Column, Cell], graves: Iterable[Grave], now: float
) -> dict[Column, Cell]:
    keys = {} if name == _STATIC else dict(zip(table.clustering, name, strict=True))
    over = [
        grave.at
        for grave in graves
        if (not grave.conditions if name == _STATIC else all(one.holds(keys) for one in grave.conditions))
    ]
    buried = max(over, default=-1)
    return {
        column: cell
        for column, cell in row.items()
        if cell.value is not None and cell.at > buried and (cell.end is None or cell.end > now)
    }


def _value(column: str, keys: Mapping[str, Any], cells: Mapping[Column, Cell], now: float) -> Any:
    if column in keys:
        return keys[column]
    if column.startswith(("ttl(", "writetime(")):
        cell = cells.get(column.partition("(")[2][:-1])
        if cell is None:
            return None
        if column.startswith("writetime("):
            return cell.at
        return None if cell.end is None else max(1, int(cell.end - now))
    if column in cells:
        return cells[column].value
    entries = {key[1]: cell.value for key, cell in cells.items() if isinstance(key, tuple) and key[0] == column}
    return entries or None


# ---------------------------------------------------------------- schema


def read_schema(texts: Iterable[str]) -> dict[str, Table]:
    """Returns the tables of migrations."""
    tables: dict[str, Table] = {}
    for text in texts:
        for statement in " ".join(re.sub(r"--.*", "", text).split()).split(";"):
            found = re.match(r" ?create table if not exists (\w+) \((.*)\)(?: with (.*))?$", statement)
            if found:
                tables[found[1]] = _read_table(found[1], *_body_and_options(statement))
    return tables


def _body_and_options(statement: str) -> tuple[str, str]:
    begin = statement.index("(")
    depth = 0
    for place in range(begin, len(statement)):
        depth += {"(": 1, ")": -1}.get(statement[place], 0)
        if depth == 0:
            return statement[begin + 1 : place], statement[place + 1 :]
    raise Unknown(statement)


def _read_table(name: str, body: str, options: str) -> Table:
    key = re.search(r"primary key (\(.*\))", body)
    if key is None:
        single = re.match(r" ?(\w+) \w+ primary key", body)
        if single is None:
            raise Unknown(body)
        return Table(name, (single[1],), {}, frozenset())
    parts = re.match(r"\((?:\(([^)]*)\)|(\w+))(?:, (.*))?\)", key[1])
    if parts is None:
        raise Unknown(body)
    descending = set(re.findall(r"(\w+) desc", options))
    partition = tuple(re.split(r", ", parts[1] or parts[2]))
    clustering = {column: column in descending for column in re.split(r", ", parts[3] or "") if column}
    return Table(name, partition, clustering, frozenset(re.findall(r"(\w+) \w+ static", body)))


# ---------------------------------------------------------------- statements


class _Bound:
    """Hands out a statement's values in the order of their marks."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = list(values)

    def take(self, text: str) -> Any:
        if text == "?":
            return self._values.pop(0)
        if text.startswith("("):
            return tuple(self.take(one) for one in text[1:-1].split(", "))
        if text.startswith("'"):
            return text[1:-1]
        return {"true": True, "false": False}[text] if text in ("true", "false") else int(text)

    def done(self) -> None:
        if self._values:
            raise Unknown(f"{len(self._values)} values too many")


def bind(tables: Mapping[str, Table], statement: str, values: Sequence[Any], now: float) -> Change | Look:
    """Returns what a statement does or wants."""
    kind, parts = _parse(statement)
    bound = _Bound(values)
    made = _BIND[kind](tables, parts, bound, now)
    bound.done()
    return made


_FORMS: Final = {
    "insert": re.compile(r"insert into (\w+) \((.*?)\) values \((.*?)\)(?: using (.*))?$"),
    "update": re.compile(r"update (\w+) using (.*?) set (.*?) where (.*)$"),
    "delete": re.compile(r"delete (?:(\w+)\[(\?)\] )?from (\w+) using (timestamp \?) where (.*)$"),
    "select": re.compile(r"select (distinct )?(.*?) from (\w+) where (.*?)(?: order by (.*?))?(?: limit (\?|\d+))?$"),
}


@lru_cache(maxsize=500)
def _parse(statement: str) -> tuple[str, tuple[str | None, ...]]:
    text = " ".join(statement.split())
    for kind, form in _FORMS.items():
        found = form.match(text)
        if found is not None:
            return kind, found.groups()
    raise Unknown(text)


def _using(text: str | None, bound: _Bound, now: float) -> tuple[int, float | None]:
    found = {one.split()[0]: bound.take("?") for one in (text or "").split(" and ") if one}
    ttl = found.get("ttl") or 0
    return found["timestamp"], now + ttl if ttl else None


def _where(table: Table, text: str, bound: _Bound) -> tuple[Name, tuple[Condition, ...]]:
    partition: dict[str, Any] = {}
    conditions: list[Condition] = []
    for one in text.split(" and "):
        found = re.match(r"(\w+|\(.*?\)) (=|<=|<|in) (.*)$", one)
        if found is None:
            raise Unknown(one)
        columns = tuple(found[1].strip("()").split(", "))
        value = bound.take(found[3])
        if columns[0] in table.partition:
            partition[columns[0]] = value
        elif set(columns) <= set(table.clustering):
            conditions.append(Condition(columns, found[2], tuple(value) if found[2] == "in" else value))
        else:
            raise Unknown(one)
    return tuple(partition[column] for column in table.partition), tuple(conditions)


def _insert(tables: Mapping[str, Table], parts: Any, bound: _Bound, now: float) -> Change:
    table = tables[parts[0]]
    values = {column: bound.take(mark) for column, mark in zip(parts[1].split(", "), parts[2].split(", "), strict=True)}
    at, end = _using(parts[3], bound, now)
    cells: dict[Column, Cell] = {_MARKER: Cell(at, True, end)}
    keys = (*table.partition, *table.clustering)
    cells.update({column: Cell(at, value, end) for column, value in values.items() if column not in keys})
    name = tuple(values[column] for column in table.clustering)
    return Change(table.name, tuple(values[column] for column in table.partition), Partition({name: cells}))


def _update(tables: Mapping[str, Table], parts: Any, bound: _Bound, now: float) -> Change:
    table = tables[parts[0]]
    at, end = _using(parts[1], bound, now)
    row: dict[Column, Cell] = {}
    static: dict[Column, Cell] = {}
    for one in _SPLIT_DEEP.split(parts[2]):
        target, _, value = one.strip().partition(" = ")
        column: Column = (target[:-3], bound.take("?")) if target.endswith("[?]") else target
        (static if target in table.static else row)[column] = Cell(at, bound.take(value), end)
    partition, conditions = _where(table, parts[3], bound)
    name = tuple(one.value for one in conditions)
    rows = {name: row} if row else {}
    return Change(table.name, partition, Partition(rows | ({_STATIC: static} if static else {})))


def _delete(tables: Mapping[str, Table], parts: Any, bound: _Bound, now: float) -> Change:
    table = tables[parts[2]]
    entry: Any = bound.take("?") if parts[0] else None
    at, _ = _using(parts[3], bound, now)
    partition, conditions = _where(table, parts[4], bound)
    if parts[0]:
        gone: dict[Column, Cell] = {(parts[0], entry): Cell(at, None)}
        return Change(table.name, partition, Partition({tuple(one.value for one in conditions): gone}))
    return Change(table.name, partition, Partition(graves=frozenset({Grave(conditions, at)})))


def _select(tables: Mapping[str, Table], parts: Any, bound: _Bound, now: float) -> Look:
    table = tables[parts[2]]
    partition, conditions = _where(table, parts[3], bound)
    order = dict(table.clustering)
    for one in (parts[4] or "").split(", "):
        if one:
            column, _, direction = one.partition(" ")
            order[column] = direction == "desc"
    limit = None if parts[5] is None else bound.take(parts[5])
    return Look(table, partition, tuple(parts[1].split(", ")), conditions, order, bool(parts[0]), limit)


_COMPARE: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": eq,
    "<": lt,
    "<=": le,
    "in": lambda found, values: found in values,
}
_BIND: Final[Mapping[str, Callable[[Mapping[str, Table], Any, _Bound, float], Change | Look]]] = {
    "insert": _insert,
    "update": _update,
    "delete": _delete,
    "select": _select,
}
