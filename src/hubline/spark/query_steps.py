"""What the steps of a query do with events that failed, and with those of other partitions, as its plan's text says.

Columns are followed by Spark's numbers of them (`celsius#15`). A literal in the text can look like anything, so what is
not understood counts as fine: to refuse a good query is worse than to miss a bad one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from hubline.spark.json_parsing import ERROR_COLUMN

_NUMBER: Final = re.compile(r"#(\d+)")
_MADE: Final = re.compile(r"#(?P<made>\d+)L?(?:-T\d+ms)?$")
# A column under another name, or as another type.
_RENAMED: Final = re.compile(r"(?:cast\()?[^\s(),]+#(?P<number>\d+)L?(?:-T\d+ms)?(?: as [^()]*\))? AS ")
_PARSED: Final = re.compile(r"get\(_hubline_parsed#\d+")
_PARTITION: Final = re.compile(r"\bpartition#(\d+)")
_CALL: Final = re.compile(r"([^\s()]+)\(")
_AT_LEAST: Final = re.compile(r"Filter atleastnnonnulls\((?P<least>\d+), (?P<columns>.*)\)$")
_JOIN: Final = re.compile(r"Join (\w+)")
# explode_outer says "true".
_WITHOUT_EMPTY: Final = re.compile(r", false, (?:[^,\[\]]+, )?\[[^\[\]]*\]$")
_CTE: Final = re.compile(r"CTERelation(?:Def|Ref) (\d+)")

_DEDUPLICATING: Final = frozenset({"Deduplicate", "DeduplicateWithinWatermark"})
_KEYED: Final = _DEDUPLICATING | {"Aggregate"}
_WITH_STATE: Final = re.compile(r"FlatMapGroups\w*WithState|TransformWithState\w*")
# The sides of a join of which every row is kept, or none is asked for.
_KEPT_SIDES: Final = {
    "LeftOuter": (0,), "RightOuter": (1,), "FullOuter": (0, 1), "Cross": (0, 1), "LeftSemi": (1,), "LeftAnti": (0, 1),
}  # fmt: skip
# Of null, they are null, or nothing.
_NULL_OF_NULL: Final = frozenset(
    {"abs", "array_contains", "between", "cast", "ceil", "contains", "date_trunc", "dayofmonth", "element_at",
     "endswith", "explode", "floor", "hour", "inline", "isnotnull", "length", "like", "lower", "ltrim", "month",
     "posexplode", "rlike", "round", "rtrim", "split", "startswith", "substring", "to_date", "trim", "upper", "year"}
)  # fmt: skip
# What can be true of null, and is not written as a function.
_MAY_KEEP_NULL: Final = re.compile(r"<=>|\bCASE WHEN\b|\bexists#|\bNOT \(*isnotnull\(|\bNOT \(.*isnotnull\(")


class Step(Protocol):
    """A step of a logical plan: Spark's name of it, its line in the plan, and the steps that it takes rows from."""

    @property
    def kind(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def inputs(self) -> Sequence[Step]: ...


def losing_step(plan: Step) -> str | None:
    """What drops rows with an `_error` without a look at it, if anything does.

    The fields of such rows are null, so a filter by a field drops them, and an aggregate of fields makes one row of
    them: their events become neither rows nor dead letters. A filter, join or aggregate that names `_error` says what
    the user wants, and so does a projection that leaves it out.
    """
    return _rows_of(plan, {}).losing


def state_over_partitions(plan: Step) -> str | None:
    """What keeps state of events of several partitions, if anything does."""
    return _rows_of(plan, {}).mixing


@dataclass(frozen=True, slots=True)
class _Rows:
    """What comes out of a step. All columns are Spark's numbers of them."""

    losing: str | None = None
    mixing: str | None = None
    is_stream: bool = False
    partitions: frozenset[str] = frozenset()
    fields: frozenset[str] = frozenset()
    """Those that are null where `errors` are not."""
    errors: frozenset[str] = frozenset()
    """`_error`, also under other names. There are none where no row failed, or where it has been decided."""
    seen: frozenset[str] = frozenset()
    """What is computed of `errors`."""
    computed: frozenset[str] = frozenset()
    """What is computed of `fields`: it can be anything where they are null."""

    def decided(self) -> _Rows:
        """The same, when the user has said what happens to rows that failed."""
        return replace(self, fields=frozenset(), errors=frozenset(), seen=frozenset(), computed=frozenset())

    def of(self, columns: Iterable[str]) -> _Rows:
        """With these columns alone."""
        kept = frozenset(columns)
        rows = replace(
            self,
            partitions=self.partitions & kept,
            fields=self.fields & kept,
            errors=self.errors & kept,
            seen=self.seen & kept,
            computed=self.computed & kept,
        )
        return rows if rows.errors else rows.decided()


def _rows_of(step: Step, views: dict[str, _Rows]) -> _Rows:
    """What comes out of a step. `views` are the definitions of WITH, by their numbers."""
    inputs = [_rows_of(each, views) for each in step.inputs]
    if step.kind == "CTERelationRef":
        return _referred(step, views)
    if step.kind == "WithCTE":
        return inputs[-1] if inputs else _Rows()
    rows = _together(inputs) if inputs else _source(step)
    if rows.mixing is None and rows.is_stream and _mixes_partitions(step, inputs):
        rows = replace(rows, mixing=step.kind)
    if rows.errors:
        rows = _after(step, rows, inputs)
    if step.kind in ("Project", "Aggregate"):
        rows = _projected(step, rows)
    if step.kind == "CTERelationDef" and (number := _CTE.search(step.text)):
        views[number[1]] = rows
    return rows


def _together(inputs: Sequence[_Rows]) -> _Rows:
    return _Rows(
        losing=next((rows.losing for rows in inputs if rows.losing), None),
        mixing=next((rows.mixing for rows in inputs if rows.mixing), None),
        is_stream=any(rows.is_stream for rows in inputs),
        partitions=frozenset().union(*(rows.partitions for rows in inputs)),
        fields=frozenset().union(*(rows.fields for rows in inputs)),
        errors=frozenset().union(*(rows.errors for rows in inputs)),
        seen=frozenset().union(*(rows.seen for rows in inputs)),
        computed=frozenset().union(*(rows.computed for rows in inputs)),
    )


def _source(step: Step) -> _Rows:
    is_stream = step.kind.startswith("Streaming")
    return _Rows(is_stream=is_stream, partitions=frozenset(_PARTITION.findall(step.text) if is_stream else ()))


def _referred(step: Step, views: dict[str, _Rows]) -> _Rows:
    number = _CTE.search(step.text)
    rows = views.get(number[1], _Rows()) if number else _Rows()
    columns = _numbers(step.text)
    # A second reference has other numbers for all columns, and nothing says which is which.
    is_same = rows.partitions | rows.errors <= columns
    return rows.of(columns) if is_same else _Rows(losing=rows.losing, mixing=rows.mixing)


# Failures ----------------------------------------------------------------------------------------------------------


def _after(step: Step, rows: _Rows, inputs: Sequence[_Rows]) -> _Rows:
    """What comes out of a step that rows with an error come into."""
    if _decides(step) and _numbers(step.text) & (rows.errors | rows.seen):
        return rows.decided()
    return replace(rows.decided(), losing=step.kind) if _loses(step, rows, inputs) else rows


def _decides(step: Step) -> bool:
    """Whether a step that names `_error` looks at it; na.drop() names all columns."""
    return step.kind in ("Filter", "Join", "Aggregate") and _AT_LEAST.search(step.text) is None


def _loses(step: Step, rows: _Rows, inputs: Sequence[_Rows]) -> bool:
    match step.kind:
        case "Filter" if at_least := _AT_LEAST.search(step.text):
            # Of a row that failed, all columns but the fields count.
            columns = _NUMBER.findall(at_least["columns"])
            return sum(each not in rows.fields for each in columns) < int(at_least["least"])
        case "Filter":
            return _needs(step, rows, rows.fields)
        case "Join":
            kept = _KEPT_SIDES.get(_join_type(step), ())
            lost = [side.fields for place, side in enumerate(inputs) if place not in kept]
            return any(_needs(step, rows, fields) for fields in lost)
        case "Generate":
            return _WITHOUT_EMPTY.search(step.text) is not None and _needs(step, rows, rows.fields)
        case "Aggregate":
            return not _numbers(step.text).isdisjoint(rows.fields)
        case kind if kind in _DEDUPLICATING:
            # With a column of the event among them, such as eventId, there may be no two alike.
            return bool(keys := _keys(step)) and all(_numbers(key) & (rows.fields | rows.errors) for key in keys)
    return False


def _needs(step: Step, rows: _Rows, fields: frozenset[str]) -> bool:
    """Whether a condition cannot be true where these fields are null, as far as that can be judged."""
    condition = step.text.partition("\n")[0]  # not what a subquery names
    if (
        _numbers(condition).isdisjoint(fields)
        or _numbers(step.text) & rows.computed
        or _MAY_KEEP_NULL.search(step.text)
    ):
        return False
    # Where one of several conditions is enough, one of another column can be, such as one that a join left null.
    is_enough = " OR " in step.text or "NOT (" in step.text
    calls = ((call[1].lower(), _numbers(_bracketed(step.text, call.end()))) for call in _CALL.finditer(step.text))
    return all(name in _NULL_OF_NULL or not (used if is_enough else used & fields) for name, used in calls)


def _join_type(step: Step) -> str:
    match = _JOIN.search(step.text)
    return match[1] if match else ""


def _projected(step: Step, rows: _Rows) -> _Rows:
    """The columns that a projection gives, under their new numbers."""
    if not (items := _outputs(step)):
        return _Rows(losing=rows.losing, mixing=rows.mixing)
    columns = []
    is_parsing = _PARSED.search(step.text) is not None
    for item in items:
        if match := _MADE.search(item):
            columns.append(match["made"])
            value = item[: match.start()]
            if is_parsing and value.endswith(f" AS {ERROR_COLUMN}"):
                rows = replace(rows, errors=rows.errors | {match["made"]})
            elif "#" in value:
                rows = _with_column(rows, match["made"], value)
    return rows.of(columns)


def _with_column(rows: _Rows, made: str, value: str) -> _Rows:
    """With a column that is made of others: `value` ends with its name."""
    used, renamed = _numbers(value), _RENAMED.match(value)
    number = renamed["number"] if renamed else None
    if number in rows.partitions:
        return replace(rows, partitions=rows.partitions | {made})
    if number in rows.errors or (value.endswith(f" AS {ERROR_COLUMN}") and used & rows.errors):
        return replace(rows, errors=rows.errors | {made})
    if number in rows.fields or _PARSED.match(value):
        return replace(rows, fields=rows.fields | {made})
    if used & (rows.errors | rows.seen):
        return replace(rows, seen=rows.seen | {made})
    return replace(rows, computed=rows.computed | {made}) if used & (rows.fields | rows.computed) else rows


# State -------------------------------------------------------------------------------------------------------------


def _mixes_partitions(step: Step, inputs: Sequence[_Rows]) -> bool:
    if step.kind == "Join":
        return all(rows.is_stream for rows in inputs)
    if step.kind in _KEYED or _WITH_STATE.fullmatch(step.kind):
        partitions = _together(inputs).partitions
        return bool(_lists(step.text)) and not any(_numbers(key) & partitions for key in _keys(step))
    return step.kind == "Distinct"


# The text ----------------------------------------------------------------------------------------------------------


def _numbers(text: str) -> frozenset[str]:
    return frozenset(_NUMBER.findall(text))


def _keys(step: Step) -> list[str]:
    """What rows are brought together by."""
    lists = _lists(step.text)
    has_keys = len(lists) > (step.kind == "Aggregate")  # without keys, its only list are its results
    return lists[0] if has_keys else []


def _outputs(step: Step) -> list[str]:
    """The columns that a projection, or an aggregate, gives."""
    lists = _lists(step.text)[: 2 if step.kind == "Aggregate" else 1]  # others are of a subquery
    return lists[-1] if lists else []


def _lists(text: str) -> list[list[str]]:
    """The lists in square brackets that are in nothing else, item by item; none if a literal has odd brackets."""
    lists: list[list[str]] = []
    opened: list[str] = []
    start = 0
    for place, character in enumerate(text):
        is_item_end = opened == ["["] and character in "],"
        if is_item_end:
            lists[-1].append(text[start:place].strip())
        if character in "([":
            opened.append(character)
        elif character in ")]" and (not opened or opened.pop() + character not in ("()", "[]")):
            return []
        if opened == ["["] and (character == "[" or is_item_end):
            start = place + 1
            if character == "[":
                lists.append([])
    return [] if opened else lists


def _bracketed(text: str, start: int) -> str:
    """What stands between a bracket and the one that closes it."""
    depth = 1
    for place in range(start, len(text)):
        depth += (text[place] in "([") - (text[place] in ")]")
        if depth == 0:
            return text[start:place]
    return text[start:]
