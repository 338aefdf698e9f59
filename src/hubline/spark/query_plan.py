"""What a query does with its events, as Spark's `EXPLAIN` says before it starts: on every kind of session.

`EXPLAIN` gives a text, and this reads it with care: a literal with a line break in it can look like a step. A line that
does not stand where a step can stand makes the plan `is_certain=False`, and nothing is proved by it. A step counts as
one that moves rows, or keeps state, unless it is named here as one that does not: a step of a later Spark, or of an
extension, proves nothing until somebody has looked at it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import DataFrame

from hubline.spark.schema import SOURCE_SCHEMA
from hubline.spark.session_settings import temporary_settings

IN_ORDER: Final = frozenset(
    {"AppendColumns", "BroadcastJoin", "CTERelationDef", "CollectMetrics", "DeserializeToObject", "EventTimeWatermark",
     "Expand", "Filter", "Generate", "MapElements", "MapInArrow", "MapInPandas", "MapPartitions", "Project",
     "ResolvedHint", "Sample", "SerializeFromObject", "SubqueryAlias", "TypedFilter", "UpdateEventTimeWatermarkColumn",
     "View", "WithCTE"}
)  # fmt: skip
"""Steps that leave rows in their task, and in their order. `BroadcastJoin` is one of ours, see `_path_of_events`."""

STATELESS: Final = IN_ORDER | {"Join", "RebalancePartitions", "Repartition", "RepartitionByExpression", "Sort", "Union"}
"""Steps after which all rows of a batch are of the batch's own events. A join of two streams is not among them."""

SEVERAL_ROWS: Final = frozenset({"Expand", "Generate"})
"""Steps that make several rows of one: `explode`, `unpivot`."""

# Of a join, the side that can be sent to every task. With other kinds, Spark may ignore that it was asked for.
_SENT_SIDES: Final[Mapping[str, tuple[int, ...]]] = {
    "Inner": (0, 1), "Cross": (0, 1), "LeftOuter": (1,), "LeftSemi": (1,), "LeftAnti": (1,), "RightOuter": (0,),
}  # fmt: skip

# Steps that name columns and make none of them, but for a projection, which says of what.
_PASSING: Final = frozenset({"Filter", "Join", "Project", "Sort", "SubqueryAlias", "View"})
# What a stream is before its query starts, by a source of either of Spark's two interfaces.
_STREAMS: Final = frozenset({"StreamingRelation", "StreamingRelationV2"})
_PROJECT: Final = "Project"
_FORMATS: Final = ("eventhubs", "hubline-stage")
# Spark leaves out fields of a step beyond the 25th.
_ALL_FIELDS: Final[Mapping[str, str]] = {"spark.sql.debug.maxToStringFields": "10000"}

_BEGIN: Final = "== Analyzed Logical Plan ==\n"
_END: Final = "\n\n== Optimized Logical Plan =="
_LINE: Final = re.compile(r"(?P<above>(?:[: ] {2})*)(?P<joint>[:+]- )(?P<text>.*)")
_KIND: Final = re.compile(r"[~'!]*(?P<kind>[A-Z]\w*)")
_COLUMN: Final = re.compile(r"(?P<name>[^\s\[\](),#]+)#(?P<id>\d+)L?(?:-T\d+ms)?")


@dataclass(slots=True)
class Step:
    """A step of a plan, with those before it.

    Attributes:
        kind: The name of Spark's class.
        text: The line of the plan, without the tree that is drawn before it.
        inputs: The steps that it takes rows from.
    """

    kind: str
    text: str
    inputs: list[Step] = field(default_factory=list)

    def __iter__(self) -> Iterator[Step]:
        """This step, and all before it, the last one first."""
        yield self
        for step in self.inputs:
            yield from step

    @property
    def is_stream(self) -> bool:
        """Whether rows of a stream come through it."""
        return any(step.kind in _STREAMS for step in self)


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """The plan of a query that has not started."""

    root: Step
    columns: tuple[str, ...]
    is_certain: bool
    """Whether every line of the text was understood."""

    @classmethod
    def of(cls, frame: DataFrame) -> QueryPlan:
        """Raises what Spark raises of a query that it does not understand."""
        # Under names that need no quoting, and that no other text has.
        numbered = frame.toDF(*map(str, range(len(frame.columns))))
        spark = frame.sparkSession
        with temporary_settings(spark, _ALL_FIELDS):
            # Its one way into a variable: DataFrame.explain prints.
            text = str(spark.sql("EXPLAIN EXTENDED SELECT * FROM {query}", query=numbered).collect()[0][0])
        root, is_certain = _parsed(text)
        return cls(root, tuple(frame.columns), is_certain)

    @property
    def _streams(self) -> list[Step]:
        return [step for step in self.root if step.kind in _STREAMS]

    @property
    def hubs_read(self) -> int:
        """How many times it reads a hub: by hubline's formats, also with fewer columns, or by all columns of events."""
        return sum(map(_is_hub, self._streams))

    @property
    def moving_step(self) -> str | None:
        """What moves rows between tasks, or changes their order, if anything does."""
        return next((kind for kind in _path_of_events(self.root) if kind not in IN_ORDER), None)

    @property
    def stays_in_task(self) -> bool:
        """Whether it is proved that every row stays in the task that read its event."""
        return self.is_certain and len(self._streams) == 1 and self.moving_step is None

    @property
    def has_state(self) -> bool:
        """Whether rows can come of earlier batches, too. Where it is not proved that they cannot, they can."""
        return not self.is_certain or any(_may_have_state(step) for step in self.root if step.is_stream and step.inputs)

    @property
    def makes_several_rows(self) -> bool:
        """Whether it makes several rows of one, as `explode` does."""
        return any(kind in SEVERAL_ROWS for kind in _path_of_events(self.root))

    def computed(self, names: Iterable[str]) -> set[str]:
        """Of these columns, those that the query computes itself, or takes from another column or a static table.

        What comes of an aggregate, or of a function over whole rows, is not looked into.
        """
        return {name for name, step in self._origins(names).items() if step is not None}

    def is_first_computed(self, name: str) -> bool:
        """Whether a column is computed of nothing but the stream, before everything else."""
        step = self._origins([name]).get(name)
        return step is not None and len(step.inputs) == 1 and step.inputs[0].kind in _STREAMS

    def _origins(self, names: Iterable[str]) -> dict[str, Step | None]:
        """Where each of these columns is made; None if the stream has it under the same name."""
        numbers = {self.columns[int(each["name"])]: each["id"] for each in _COLUMN.finditer(self.root.text)}
        sought = {name: numbers[name] for name in names if name in numbers}
        origins: dict[str, Step | None] = {}
        for step in self.root:
            if step.kind == _PROJECT:
                for name, number in list(sought.items()):
                    if (value := _definition(step.text, number)) is None:
                        continue
                    if column := _unwrapped(value, name):
                        sought[name] = column
                    else:
                        origins[name] = step
                        del sought[name]
            elif not step.inputs:
                own = {each["id"]: each["name"] for each in _COLUMN.finditer(step.text)}
                for name, number in list(sought.items()):
                    if number in own:
                        origins[name] = None if step.kind in _STREAMS and own[number] == name else step
                        del sought[name]
        # Some tables do not name their columns in a plan (a range); a step that is not looked into does.
        opaque = {each["id"] for step in self.root if step.inputs for each in _COLUMN.finditer(_own_text(step))}
        return origins | {name: Step("", "") for name, number in sought.items() if number not in opaque}


def _is_hub(stream: Step) -> bool:
    words = stream.text.split(", ", 2)
    columns = {each["name"] for each in _COLUMN.finditer(stream.text)}
    return (len(words) > 1 and words[1].lower() in _FORMATS) or columns >= set(SOURCE_SCHEMA.names)


def _own_text(step: Step) -> str:
    """What may name columns that a step gives and nothing says of what."""
    return "" if step.kind in _PASSING else step.text


# The text ----------------------------------------------------------------------------------------------------------


def _parsed(text: str) -> tuple[Step, bool]:
    """The last step of a query's analysed plan, and whether all lines were understood."""
    begin, end = text.find(_BEGIN), text.rfind(_END)
    if begin < 0 or end < begin:
        return Step("", ""), False
    _schema, first, *lines = [*text[begin + len(_BEGIN) : end].split("\n"), ""]
    root = Step(_kind(first) or "", first)
    is_certain, path, joints = _kind(first) is not None, [root], [""]
    for line in filter(None, lines):
        match = _LINE.fullmatch(line)
        depth = len(match["above"]) // 3 + 1 if match else 0
        kind = _kind(match["text"]) if match else None
        if match is None or kind is None or not _fits(path, joints, depth, match["above"]):
            path[-1].text += "\n" + line
            is_certain = False
            continue
        del path[depth:], joints[depth:]
        step = Step(kind, match["text"])
        path[-1].inputs.append(step)
        path.append(step)
        joints.append(match["joint"])
    return root, is_certain


def _fits(path: list[Step], joints: list[str], depth: int, above: str) -> bool:
    """Whether a step can stand there: below the one before it, or beside one that is not the last of its parent's."""
    if depth > len(path) or (depth < len(path) and joints[depth] == "+- "):
        return False
    drawn = [above[start : start + 3] for start in range(0, len(above), 3)]
    return drawn == [":  " if joint == ":- " else "   " for joint in joints[1:depth]]


def _kind(text: str) -> str | None:
    match = _KIND.match(text)
    return match["kind"] if match else None


def _definition(text: str, number: str) -> str | None:
    """What a step computes a column of, if it does."""
    alias = re.search(rf" AS [^,\[\]]*?#{number}L?(?:-T\d+ms)?(?=[,\]])", text)
    if alias is None:
        return None
    depth, start = 0, alias.start()
    while start > 0 and not (depth == 0 and text[start - 1] in ",["):
        start -= 1
        depth += (text[start] in ")]}") - (text[start] in "([{")
    return text[start : alias.start()].strip()


def _unwrapped(value: str, name: str) -> str | None:
    """The number of the column that a value is, without what changes nothing: a cast to its own type, and what `fillna`
    puts in where there is nothing."""
    if value.startswith("coalesce(") and value.endswith(")"):
        return _unwrapped(_first_argument(value[len("coalesce(") : -1]), name)
    if value.startswith("cast(") and name in SOURCE_SCHEMA.names:
        inner, _, kind = value[len("cast(") : -1].rpartition(" as ")
        own = SOURCE_SCHEMA[name].dataType.simpleString()
        return _unwrapped(inner, name) if kind.replace(" collate UTF8_BINARY", "") == own else None
    match = _COLUMN.fullmatch(value)
    return match["id"] if match else None


def _first_argument(arguments: str) -> str:
    depth = 0
    for place, character in enumerate(arguments):
        if character == "," and depth == 0:
            return arguments[:place]
        depth += (character in "([") - (character in ")]")
    return arguments


# The steps ---------------------------------------------------------------------------------------------------------


def _path_of_events(step: Step) -> Iterator[str]:
    """The steps that events go through, the last one first, without what they begin with.

    A table that a join sends to every task is not among them: that join is a `BroadcastJoin`.
    """
    if not step.inputs:
        return
    kind, inputs = step.kind, step.inputs
    if kind == "Join" and len(stays := [side for side in inputs if not _is_sent(step, side)]) == 1:
        kind, inputs = "BroadcastJoin", stays
    yield kind
    for each in inputs:
        yield from _path_of_events(each)


def _is_sent(join: Step, side: Step) -> bool:
    """Whether one side of a join is marked to be sent, and can be. Of two that are, Spark sends the smaller one."""
    words = join.text.replace(",", " ").split()
    places = _SENT_SIDES.get(words[1], ()) if len(words) > 1 else ()
    marked = [each for each in join.inputs if _is_marked(each)]
    return not side.is_stream and any(join.inputs[place] is side for place in places) and marked == [side]


def _is_marked(side: Step) -> bool:
    """There or before steps that take it as it is."""
    if side.kind == "ResolvedHint":
        return "strategy=broadcast" in side.text
    return len(side.inputs) == 1 and _is_marked(side.inputs[0])


def _may_have_state(step: Step) -> bool:
    if step.kind == "Join":
        return all(side.is_stream for side in step.inputs)
    return step.kind not in STATELESS
