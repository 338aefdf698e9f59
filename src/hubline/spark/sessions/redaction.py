"""What Spark must not show: hubline's shapes and names of secrets as Spark's settings, joined to the user's own.

Spark hides by four settings. Setting one replaces its default, so each default stands here too, and a user's own
expression is joined to ours: nobody undoes the hiding by adding to it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

from hubline.secrets import HIDDEN_NAMES, SHAPES, any_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OPTION_NAMES: Final = (r"url",)
_PIECES: Final = any_of(*(shape.hidden for shape in SHAPES))
"""Pieces of any text that Spark produces: plans, descriptions, errors that quote them."""

HIDING: Final[Mapping[str, str]] = {
    "spark.redaction.regex": any_of(*HIDDEN_NAMES),
    "spark.sql.redaction.options.regex": any_of(*_OPTION_NAMES, *HIDDEN_NAMES),
    "spark.redaction.string.regex": _PIECES,
    "spark.sql.redaction.string.regex": _PIECES,
}
"""By setting, what is hidden."""

_HIDDEN: Final = re.compile(HIDING["spark.redaction.regex"])


_OPTIONS: Final = "spark.sql.redaction.options.regex"


def hiding(given: Mapping[str, str], secrets: Collection[str] = ()) -> dict[str, str]:
    """The settings that hide secrets, with those of the user in them, and with the names of ``secrets``."""
    texts = given.get("spark.redaction.string.regex")
    # Without its own expression, SQL goes by the general one.
    given = {**({"spark.sql.redaction.string.regex": texts} if texts else {}), **given}
    hidden = {name: _joined(ours, given.get(name)) for name, ours in HIDING.items()}
    if secrets:
        hidden["spark.redaction.regex"] += f"|{_named(secrets)}"
    return hidden


def hide_options(spark: SparkSession, names: Collection[str]) -> None:
    """Has a session hide the options of these names, too, in what it shows of queries from now on."""
    known = spark.conf.get(_OPTIONS) or ""
    if names and (ours := _named(names)) not in known:
        spark.conf.set(_OPTIONS, f"(?:{known})|{ours}" if known else ours)


def _named(names: Collection[str]) -> str:
    # Hadoop's own settings are shown a second time, without Spark's prefix.
    return any_of(*(f"^(?:spark[.]hadoop[.])?{re.escape(name.removeprefix('spark.hadoop.'))}$" for name in names))


def is_hidden(name: str, value: str, *, given: str | None = None) -> bool:
    """Whether a setting looks as if it held a secret, to us or by the user's own expression, if there is one."""
    if name in HIDING:  # the expressions themselves are full of such words
        return False
    return any(_HIDDEN.search(text) or _matches(given, text) for text in (name, value))


def _matches(expression: str | None, text: str) -> bool:
    try:
        return expression is not None and re.search(expression, text) is not None
    except re.error:  # Java's, and none of Python's: then everything may be meant
        return True


def _joined(ours: str, given: str | None) -> str:
    if not given or ours in given:
        return given or ours
    return f"(?:{given})|{ours}"
