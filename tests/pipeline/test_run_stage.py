"""`run_stage` as users call it: the page about it, the tests of the examples, and what it says of mistakes."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from hubline.errors import ConfigError, HublineError, PipelineInvalid, StageFailed
from hubline.model.events import NewEvent
from hubline.testing import run_stage
from tests.pipeline.files import write

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/how-to/local/test-your-code.md"
FILE = re.compile(r'^```(?:python|toml) title="([a-z_.]+)"\n(.*?)^```$', re.DOTALL | re.MULTILINE)
SHOWN = re.compile(r"^```console\n\$ pytest (.*?)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Folder:
    """Where a reader stands, in this process: the tests that are run there share its Spark session."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path = path
        self._capsys = capsys

    def run_pytest(self, *arguments: str) -> str:
        """What pytest says, without the time that it took."""
        path = list(sys.path)
        try:
            pytest.main(["-p", "no:randomly", "-p", "no:cacheprovider", "--rootdir", str(self.path), *arguments])
        finally:
            sys.path[:] = path
            for name, module in list(sys.modules.items()):
                if (getattr(module, "__file__", None) or "").startswith(str(self.path)):
                    del sys.modules[name]
        return masked(self._capsys.readouterr().out)


def masked(said: str) -> str:
    return re.sub(r"in [\d.]+s( \(.*?\))?", "in TIME", said).strip()


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.chdir(tmp_path)
    return Folder(tmp_path, capsys)


def test_the_page_shows_what_pytest_says(folder: Folder, spark: SparkSession) -> None:
    text = PAGE.read_text()
    for name, code in FILE.findall(text):
        (folder.path / name).write_text(code)

    shown = SHOWN.findall(text)
    assert len(shown) == 3
    for arguments, output in shown:
        assert folder.run_pytest(*arguments.split()) == masked(output)


def test_the_examples_pass_their_own_tests(folder: Folder, spark: SparkSession) -> None:
    for example in ("telemetry", "windows"):
        shutil.copytree(ROOT / "examples" / example, folder.path / example)

    assert "5 passed in TIME" in folder.run_pytest("-q")


CODE = """
    import pyarrow as pa
    from pyspark.sql import functions as F
    import hubline; from hubline.spark import parse_json

    pipeline = hubline.Pipeline("kinds")

    @pipeline.event_stage(source="raw", sink="numbers", dead_letters="dead", schema="number long", event_ids=False)
    def numbers(event):
        return {"number": int(event.body)} if event.body else None

    @pipeline.batch_stage(source="raw", sink="sizes", consumer_group="sizes", schema="size long")
    def sizes(events):
        return pa.table({"size": [100 // len(body) for body in events["body"].to_pylist()]})

    @pipeline.stage(source=["raw", "other"], sink="both", consumer_group="both")
    def both(raw, other):
        return raw.unionByName(other)

    @pipeline.stage(source="raw", sink="less", consumer_group="lossy")
    def lossy(events):
        return events.select("body")

    @pipeline.stage(source="raw", sink="files", consumer_group="sorted")
    def sorted_events(events):
        return events.orderBy("body")

    @pipeline.stage(source="raw", sink="files", consumer_group="wrong")
    def wrong(events):
        return events.select("nothing")

    @pipeline.stage(source="raw", sink="sizes", consumer_group="filtered")
    def filtered(events):
        return parse_json(events, "size long").where("size > 3")"""

CONFIG = """
    [datasets]
    raw = { hub = "env:NOWHERE_RAW" }
    other = { hub = "env:NOWHERE_OTHER" }
    both = { hub = "env:NOWHERE_BOTH" }
    dead = { hub = "env:NOWHERE_DEAD" }
    less = { hub = "env:NOWHERE_LESS" }
    numbers = { format = "parquet", path = "./numbers" }
    sizes = { url = "env:NOWHERE_DATABASE", table = "store.sizes", upsert_key = "size" }
    files = { format = "parquet", path = "./files" }

    [run]
    store = "env:NOWHERE_STORE"
"""


@pytest.fixture(scope="module")  # for each folder that can be imported from, Spark starts other workers
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("kinds"), "kinds", CODE, CONFIG)


def test_every_kind_of_stage_gives_what_its_sink_would_get(file: Path, spark: SparkSession) -> None:
    numbers = run_stage(file, ["7", b"", {"body": "x", "properties": {"a": "b"}}], name="numbers")
    assert [row["number"] for row in numbers.rows] == [7]
    (dead_letter,) = numbers.dead_letters
    assert dead_letter.error_text.startswith("ValueError: invalid literal")
    assert dead_letter.event.properties == {"a": "b"}
    assert (dead_letter.key.hub, dead_letter.key.group) == ("raw", "$Default")

    assert run_stage(str(file), ["a", "bb"], name="sizes").rows == [{"size": 100}, {"size": 50}]
    assert run_stage(file, [], name="sizes").rows == []

    events: dict[str, list[NewEvent]] = {"raw": [{"body": "1", "partitionKey": "k"}], "other": ["2"]}
    rows = sorted(run_stage(file, events, name="both").rows, key=lambda row: bytes(row["body"]))
    assert [(row["body"], row["partitionKey"], row["properties"]) for row in rows] == [
        (b"1", "k", {}),
        (b"2", None, {}),
    ]
    assert len({row["eventId"] for row in rows}) == 2


def test_mistakes_of_the_stage_are_found_as_in_a_run(file: Path, spark: SparkSession) -> None:
    with pytest.raises(StageFailed, match=rf"^stage sizes failed: {file}:13: ZeroDivisionError"):
        run_stage(file, [b""], name="sizes")
    with pytest.raises(PipelineInvalid, match="stage lossy: it drops the column eventId"):
        run_stage(file, ["a"], name="lossy")
    with pytest.raises(PipelineInvalid, match=r"kinds.py:23: stage sorted_events: .*[Ss]ort"):
        run_stage(file, ["a"], name="sorted_events")
    with pytest.raises(PipelineInvalid, match=r"stage filtered: it drops rows with an _error \(Filter\)"):
        run_stage(file, ["a"], name="filtered")
    with pytest.raises(PipelineInvalid) as raised:
        run_stage(file, ["a"], name="wrong")
    place, says = str(raised.value).splitlines()
    assert place == f'{file}:29: return events.select("nothing")'
    assert says.startswith("  stage wrong: ")
    assert "`nothing` cannot be resolved" in says
    (problem,) = raised.value.problems
    assert problem.error is not None
    assert problem.error.__traceback__ is not None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"name": "store"}, "name='store' does not name one stage of .*, which has numbers, sizes, both, lossy"),
        ({"name": "numbers", "tables": {"devices": []}}, "tables has 'devices', which the stage numbers does not join"),
        ({"name": "both"}, r"the stage both reads raw, other. Pass events=\{'raw': \[...\], 'other': \[...\]\}"),
        ({"name": "numbers", "config": "nowhere.toml"}, "nowhere.toml: the file does not exist"),
    ],
)
def test_mistakes_of_the_test_are_explained(file: Path, arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(HublineError, match=says):
        run_stage(file, ["a"], **arguments)


def test_a_function_that_is_no_stage_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"masked is not a stage. Pass the function under @pipeline\.stage"):
        run_stage(masked, ["a"])
