"""All problems of a pipeline are reported before anything starts, with file and line, and what to do."""

from __future__ import annotations

import asyncio
import codecs
import json
import os
import sqlite3
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hubline
from hubline.addresses.values import parse_position
from hubline.cli.app import main
from hubline.cli.exit_codes import ExitCode
from hubline.errors import ConfigError, PipelineInvalid, Problem
from hubline.hubs.local import create_hub
from hubline.model.keys import PartitionKey
from hubline.model.ownership import Checkpoint
from hubline.pipeline.checks import CheckedPlan, check_file
from hubline.pipeline.config import read_config
from hubline.pipeline.config_file import read_toml
from hubline.pipeline.datasets import FormatDataset
from hubline.pipeline.definition import loading
from hubline.pipeline.guarantees import guarantees
from hubline.pipeline.loading import load
from hubline.pipeline.planning import build_plan
from hubline.pipeline.preparation import locked
from hubline.pipeline.runner import Request
from hubline.pipeline.stage_frame import start_after
from hubline.secrets import Secret
from hubline.text import sentences
from tests.pipeline.files import write

KEY = PartitionKey("local:/data", "raw", "hand", "0")
PLANTED = "hUnTeR2pLaNtEdSeCrEt"
CODE = """
    import hubline

    pipeline = hubline.Pipeline("telemetry")

    @pipeline.stage(source="raw", sink="clean", consumer_group="ingest", load_balancing=hubline.Balanced())
    def ingest(events):
        return events

    @pipeline.stage(
        source="clean", sink="readings", consumer_group="store", load_balancing=hubline.Fixed(2), trigger_interval="5s"
    )
    def store(events):
        return events
"""
CONFIG = """
    [datasets.raw]
    hub = "local:./hubs/raw"

    [datasets.clean]
    hub = "local:./hubs/clean"
    create_if_missing = true

    [datasets.readings]
    url = "sqlite:///results.db"
    table = "readings"
    create_if_missing = true
"""


HEAD = "import hubline\npipeline = hubline.Pipeline('t')\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a person stands who has a hub named raw."""
    for name in [name for name in os.environ if name.startswith("HUBLINE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    asyncio.run(create_hub(tmp_path / "hubs", "raw", partitions=2))
    return tmp_path


def problems(file: Path, **settings: str) -> list[Problem]:
    given = {name.replace("__", "."): value for name, value in settings.items()}
    with pytest.raises(PipelineInvalid) as raised:
        check_file(file, overrides=given)
    assert PLANTED not in str(raised.value)
    return list(raised.value.problems)


def report(found: list[Problem]) -> str:
    return "\n".join(f"{Path(each.file).name}:{each.line} {sentences(each.message, each.fix)}" for each in found)


def checked(folder: Path, code: str = CODE, config: str = CONFIG) -> CheckedPlan:
    return check_file(write(folder, "telemetry", code, config))


def test_a_plan_knows_stages_their_promises_and_what_would_be_made(folder: Path) -> None:
    found = checked(folder)
    ingest, store = found.plan.stages
    assert found.plan.levels == (("ingest",), ("store",))
    assert (ingest.options.load_balancing, store.options.load_balancing, store.options.trigger_interval) == (
        "balanced",
        "fixed:2",
        5000,
    )
    assert "the same id each time" in guarantees(ingest)[0]
    assert guarantees(store)[0].startswith("exactly once")
    assert [made.split()[0] for made in found.creations] == ["folder", "hub", "store", "table"]
    assert store.store == f"sqlite:///{folder}/results.db"  # rows and checkpoint in one place
    assert ingest.store == f"sqlite:///{folder}/state/telemetry/checkpoints.db"


def test_looking_changes_nothing(folder: Path) -> None:
    before = sorted(folder.rglob("*"))
    checked(folder)
    assert {path for path in folder.rglob("*") if path.suffix != ".pyc" and path.name != "__pycache__"} - set(
        before
    ) == {
        folder / "telemetry.py",
        folder / "telemetry.toml",
    }


def test_all_problems_are_reported_at_once_with_their_lines(folder: Path) -> None:
    code = CODE.replace('sink="clean"', 'sink="claen"').replace('trigger_interval="5s"', 'trigger_interval="soon"')
    config = CONFIG.replace("table =", "tabel =") + "[runn]\nspark_checkpoints = 'x'\n"
    found = problems(write(folder, "telemetry", code, config))
    text = report(found)
    assert "telemetry.py:5 stage ingest: there is no dataset claen (sink). Did you mean clean?" in text
    assert "telemetry.py:9 stage store: trigger_interval: the duration 'soon' is unknown" in text
    assert "telemetry.toml:10 the key tabel is unknown. Did you mean table?" in text
    assert "the key runn is unknown. Did you mean run?" in text
    assert len(found) == 5  # and a place without a table


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import hubline\npipeline = hubline.Pipeline('t'\n", "telemetry.py:2 the line is not Python"),
        ("import hubline\n\nraise KeyError('x')\n", "telemetry.py:3 importing the file raises KeyError"),
        ("import hubline\n", "telemetry.py:1 the file defines no pipeline"),
        ("from hubline import Pipeline\na = Pipeline('a')\nb = Pipeline('b')\n", "telemetry.py:3 the file defines 2"),
        ("import hubline\npipeline = hubline.Pipeline('t')\n", "telemetry.py:2 the pipeline has no stages"),
        (
            "import hubline\npipeline = hubline.Pipeline('t')\n@pipeline.stage(source='raw', sink='clean', grup='x')\n"
            "def f(e): ...\n",
            "telemetry.py:3 stage has no option grup. Did you mean consumer_group?",
        ),
        (
            "import hubline\npipeline = hubline.Pipeline('t')\n@pipeline.stage(source='raw', sink='clean')\n"
            "def f(e): return e\n\npipeline.run()\n",
            "telemetry.py:6 the file runs its pipeline when it is imported",
        ),
        ("import hubline\n\nhubline.Pipeline('a b')\n", "telemetry.py:3 the pipeline's name 'a b' is not allowed"),
        ("import os\nimport no_such_module\n", "telemetry.py:2 importing the file raises ModuleNotFoundError"),
        ("import hubline\n\nimport beside\n", "telemetry.py:3 importing the file raises ZeroDivisionError"),
        (f"{HEAD}@pipeline.stage\ndef f(e): ...\n", "telemetry.py:3 stage has no source and no sink. Write @pipeline"),
        (f"{HEAD}@pipeline.stage(sink='clean')\ndef f(e): ...\n", "telemetry.py:3 stage lacks source. Write @pipeline"),
        (
            f"{HEAD}@pipeline.stage(source=5, sink='clean')\ndef f(e): ...\n",
            "telemetry.py:3 source and sink must be names",
        ),
        (
            f"{HEAD}@pipeline.stage(source=[], sink='clean')\ndef f(): ...\n",
            "telemetry.py:3 source and sink must be names",
        ),
        (
            f"{HEAD}@pipeline.stage(source=['raw', 'raw'], sink='clean')\ndef f(a, b): ...\n",
            "telemetry.py:3 stage f: it reads one hub twice",
        ),
        (
            f"{HEAD}@pipeline.stage(source='raw', sink='clean')\nasync def f(e): ...\n",
            "telemetry.py:3 stage f: its function is async",
        ),
        (
            f"{HEAD}@pipeline.event_stage(source='raw', sink='clean', schema='id long')\ndef f(e): yield {{}}\n",
            "telemetry.py:3 stage f: its function is a generator",
        ),
        (
            f"{HEAD}@pipeline.event_stage(source='raw', sink='clean', schema=['id long'])\ndef f(e): ...\n",
            "telemetry.py:3 stage f: a handler needs the columns",
        ),
        (
            f"{HEAD}@pipeline.stage(source='raw', sink='clean', consumer_group=7)\ndef f(e): ...\n",
            "telemetry.py:3 stage f: consumer_group: it must be text in quotes, not 7",
        ),
        (f"import hubline\nHUB = 'SharedAccessKey={PLANTED}='\n", "telemetry.py:2 the line holds a shared access key"),
        ("import hubline\n\nreturn 5\n", "telemetry.py:3 the line is not Python ('return' outside function)"),
        (
            f"{HEAD}@pipeline.stage(source='raw', sink='clean', dead_letters=['raw'])\ndef f(e): ...\n",
            "telemetry.py:3 stage f: dead_letters: it must be text in quotes, not ['raw']",
        ),
        (
            f"{HEAD}@pipeline.stage(source='raw', sink='clean', name=5)\ndef f(e): ...\n",
            "telemetry.py:3 name: it must be text in quotes, not 5",
        ),
        (
            f"{HEAD}pipeline.stage(source='raw', sink='clean')(None)\n",
            "telemetry.py:3 stage stage: its function cannot be called. Give a plain function",
        ),
    ],
)
def test_what_is_wrong_with_the_file_is_reported_with_its_line(folder: Path, code: str, says: str) -> None:
    (folder / "beside.py").write_text("1 / 0\n")
    file = write(folder, "telemetry", code, CONFIG)
    assert says in report(problems(file))
    assert report(problems(Path(file.name))) == report(problems(file))  # as a person types it


def test_stages_are_not_blamed_for_datasets_in_a_file_that_is_no_toml(folder: Path) -> None:
    (found,) = problems(write(folder, "telemetry", CODE, CONFIG + "[datasets.spare\n"))
    assert "the line is not TOML" in report([found])


@pytest.mark.parametrize(
    "option", ["checkpoint", "consumer_group", "load_balancing", "starting_position", "max_batch_size",
               "trigger_interval", "on_data_loss", "drop_duplicates", "output_mode", "event_ids"],
)  # fmt: skip
def test_none_is_no_option_where_there_is_a_default(folder: Path, option: str) -> None:
    code = f"{HEAD}@pipeline.stage(source='raw', sink='clean', {option}=None)\ndef f(e): return e\n"
    (found,) = problems(write(folder, "telemetry", code, CONFIG))
    assert f"telemetry.py:3 stage f: {option}: it must not be None. Leave it out" in report([found])


@pytest.mark.parametrize("key", ["tables", "function", "where", "name"])
def test_what_is_no_option_of_a_stage_in_the_configuration_is_reported_and_changes_nothing(
    folder: Path, key: str
) -> None:
    (found,) = problems(write(folder, "telemetry", CODE, CONFIG + f"[stages.store]\n{key} = 'x'\n"))
    assert f"telemetry.toml:13 the key {key} is unknown" in report([found])


@pytest.mark.parametrize(
    "setting",
    [
        {"run__spark_checkpoints": "~nosuchuser/s"},
        {"datasets__readings__format": "csv", "datasets__readings__path": "~no/s"},
    ],
)
def test_home_of_nobody_is_no_folder(folder: Path, setting: dict[str, str]) -> None:
    config = CONFIG.replace('url = "sqlite:///results.db"', "").replace(
        'table = "readings"\n    create_if_missing = true', ""
    )
    file = write(folder, "telemetry", CODE, config if "run__spark_checkpoints" not in setting else CONFIG)
    (found,) = problems(file, **setting)
    assert found.file == f"--set {list(setting)[-1].replace('__', '.')}"
    assert "cannot be resolved. Check '~'" in found.message


def test_file_that_ends_too_early_is_reported_at_its_end(folder: Path) -> None:
    (found,) = problems(write(folder, "telemetry", CODE, CONFIG + "[spark]\nx = [\n\n"))
    assert "telemetry.toml:13 the line is not TOML" in report([found])
    assert "close quotes and brackets" in found.fix


def test_a_mark_that_editors_put_before_utf_8_is_passed_over(folder: Path) -> None:
    file = write(folder, "telemetry", CODE, CONFIG)
    creations = check_file(file).creations
    config = file.with_suffix(".toml")
    config.write_bytes(codecs.BOM_UTF8 + config.read_bytes())
    assert check_file(file).creations == creations


def test_files_of_sparks_need_a_path(folder: Path) -> None:
    config = CONFIG + '[datasets.spare]\nformat = "parquet"\n'
    text = report(problems(write(folder, "telemetry", CODE.replace('sink="clean"', 'sink="spare"'), config)))
    assert "telemetry.toml:12 the dataset spare has no path. Add path" in text


def test_queries_of_a_stage_do_not_share_a_folder_of_files_or_a_table_in_memory(folder: Path) -> None:
    config = CONFIG + '[datasets]\nspare = { format = "parquet", path = "spare" }\nshown = { format = "memory" }\n'
    stages = [
        f"@pipeline.stage(source='raw', sink='{sink}', name='{sink}')\ndef f(e): return e\n"
        for sink in ("spare", "shown")
    ]
    config += "[stages]\nspare = { queries = 2 }\nshown = { queries = 3 }\n"
    text = report(problems(write(folder, "telemetry", HEAD + "".join(stages), config)))
    assert "stage spare: queries=2 would each count the batches of one folder of files" in text
    assert "stage shown: queries=3 cannot write one table in memory" in text


@pytest.mark.parametrize("options", ["checkpoint='never'", "checkpoint='manual'", "lookback='1h'"])
def test_files_are_refused_where_batches_would_be_counted_again_from_0(folder: Path, options: str) -> None:
    config = CONFIG + '[datasets.spare]\nformat = "parquet"\npath = "spare"\n'
    code = f"{HEAD}@pipeline.stage(source='raw', sink='spare', {options})\ndef f(e): return e\n"
    assert "telemetry.py:3 stage f: files remember batches by number" in report(
        problems(write(folder, "telemetry", code, config))
    )


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (
            "[datasets.spare]\nhub = 'local:./hubs/spare'\npartitions = 0\n",
            "telemetry.toml:14 partitions must be 1 to 1024, not 0",
        ),
        ("[spark]\n'spark.jars' = ['a', 'b']\n", "telemetry.toml:13 spark.jars is a list. Write one text"),
    ],
)
def test_values_of_datasets_that_cannot_be_are_reported(folder: Path, lines: str, says: str) -> None:
    assert says in report(problems(write(folder, "telemetry", CODE, CONFIG + lines)))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (f'hub = "Endpoint=sb://h/;SharedAccessKeyName=k;SharedAccessKey={PLANTED};EntityPath=e"', "shared access key"),
        (f'url = "postgresql://me:{PLANTED}@host/db"', "a password in a URL"),
        (f'url = "https://a.blob.core.windows.net/c?sv=1&sig={PLANTED}"', "a signature"),
    ],
)
def test_a_secret_in_the_configuration_is_reported_with_its_line_and_not_shown(
    folder: Path, line: str, says: str
) -> None:
    text = report(problems(write(folder, "telemetry", CODE, CONFIG + f"[datasets.other]\n{line}\n")))
    assert f"telemetry.toml:13 the line holds {'a ' if says.startswith('shared') else ''}{says}" in text
    assert "env:NAME" in text


def test_a_secret_on_the_command_line_is_refused(folder: Path) -> None:
    file = write(folder, "telemetry", CODE, CONFIG)
    assert "--set datasets.readings.url" in report(
        problems(file, datasets__readings__url=f"postgresql://me:{PLANTED}@host/db")
    )


@pytest.mark.parametrize(
    "line",
    [
        f"options = {{ 'password' = '{PLANTED}' }}",
        f"options.sfPassword = '{PLANTED}'",
        "options.password = 12345678",
        f"[spark]\n'spark.hadoop.fs.azure.account.key.id.dfs.core.windows.net' = '{PLANTED}=='",
        f"[spark]\nspark.hadoop.fs.s3a.secret.key = '{PLANTED}'",
    ],
)
def test_a_secret_in_the_configuration_is_known_by_its_name(folder: Path, line: str) -> None:
    config = CONFIG + f"[datasets.other]\nformat = 'jdbc'\n{line}\n"
    (found,) = problems(write(folder, "telemetry", CODE, config))
    assert f"telemetry.toml:{13 + len(line.splitlines())} the line holds a" in report([found])
    assert "env:NAME or file:PATH" in found.fix


@pytest.mark.parametrize(
    "setting",
    [
        ("datasets.readings.options.password", PLANTED),
        ("spark.spark.hadoop.fs.azure.account.key.a", PLANTED),
        (f"postgresql://me:{PLANTED}@host/db?a", "b"),
    ],
)
def test_a_secret_on_the_command_line_is_known_by_its_name(folder: Path, setting: tuple[str, str]) -> None:
    (found,) = problems(write(folder, "telemetry", CODE, CONFIG), **dict([setting]))
    assert found.file.startswith("--set ")
    assert "because every user of the machine can list command lines" in found.fix


def test_settings_that_are_only_about_secrets_are_none(folder: Path) -> None:
    settings = {
        "spark.authenticate.secret.driver.file": "/run/secrets/spark",
        "spark.hadoop.fs.azure.sas.token.provider.type.acme.dfs.core.windows.net": "com.acme.Provider",
        "spark.kubernetes.authenticate.driver.oauthTokenFile": "/run/token",
        "spark.hadoop.fs.s3a.awsAccessKeyId": "acme",
        "spark.hadoop.fs.azure.account.keyprovider.acme.dfs.core.windows.net": "com.acme.Provider",
        "spark.kubernetes.executor.secretKeyRef.DB_PASS": "db:password",
        "spark.kubernetes.executor.secrets.certs": "/etc/certs",
        "spark.kafka.clusters.acme.sasl.token.mechanism": "SCRAM-SHA-512",
        "spark.acme.password.enabled": True,
        "spark.acme.tokens": 4000,
    }
    lines = [f"'{name}' = {json.dumps(value)}\n" for name, value in settings.items()]
    assert len(checked(folder, CODE, CONFIG + "[spark]\n" + "".join(lines)).plan.run.spark) == len(settings)


@pytest.mark.parametrize("line", ["DB_PASSWORD = '{}'", "options['password'] = '{}'"])
def test_a_password_in_the_pipeline_is_reported_with_its_line(folder: Path, line: str) -> None:
    file = write(folder, "telemetry", CODE, CONFIG)
    file.write_text(f"{line.format(PLANTED)}\n{file.read_text()}")
    assert "telemetry.py:1 the line holds a password" in report(problems(file))


@pytest.mark.parametrize("option", ["source", "sink", "dead_letters"])
def test_an_address_instead_of_a_name_is_not_shown(folder: Path, option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB", f"postgresql://me:{PLANTED}@host/db")
    given = {"source": "'raw'", "sink": "'clean'", option: "os.environ['DB']"}
    options = ", ".join(f"{name}={value}" for name, value in given.items())
    code = f"import os\n{HEAD}@pipeline.stage({options})\ndef f(e): return e\n"
    file = write(folder, "telemetry", code, CONFIG)
    (found,) = problems(file)
    assert f"telemetry.py:4 stage f: there is no dataset (not shown, it may hold a secret) ({option})" in report(
        [found]
    )
    assert "write its address under [datasets.NAME]" in found.fix
    assert (
        len(problems(file, datasets__readings__create_if_missing="true")) == 2
    )  # datasets in use are named without it


def test_secrets_that_are_kept_elsewhere_are_read_and_not_shown(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW", PLANTED)
    (folder / "key").write_text(f"{PLANTED}\n")
    config = f"""{CONFIG}
    [datasets.spare]
    format = "jdbc"
    options = {{ password = "env:PW", url = "file:key", header = "file:key", path = "env:PW" }}
    [spark]
    "spark.hadoop.fs.azure.account.key.a" = "file:key"
    "spark.eventLog.dir" = "file:///tmp/log"
    """
    plan = checked(folder, CODE.replace('sink="clean"', 'sink="spare"'), config).plan
    target = plan.stages[0].sink
    assert isinstance(target, FormatDataset)
    assert target.options == {
        "password": Secret(PLANTED), "url": Secret(PLANTED), "header": "file:key", "path": "env:PW"
    }  # fmt: skip
    assert plan.run.spark == {
        "spark.hadoop.fs.azure.account.key.a": Secret(PLANTED),
        "spark.eventLog.dir": "file:///tmp/log",
    }
    assert PLANTED not in repr(plan)


def test_secret_that_is_not_where_it_is_said_to_be_is_reported(folder: Path) -> None:
    file = write(folder, "telemetry", CODE, CONFIG + "[spark]\n'spark.acme.password' = 'env:NOWHERE'\n")
    assert "telemetry.toml:13 spark.acme.password: the environment variable 'NOWHERE' is not set" in report(
        problems(file)
    )
    (found,) = problems(file, **{"spark.spark.acme.password": "file:nowhere"})
    assert found.file == "--set spark.spark.acme.password"


def test_a_password_that_is_looked_up_is_no_secret_in_the_file(folder: Path) -> None:
    looked_up = 'import os\npassword = os.environ.get("P")\nURL = f"postgresql://me:{password}@host/db"\n'
    file = write(folder, "telemetry", CODE, CONFIG)
    file.write_text(looked_up + file.read_text())
    assert len(check_file(file).plan.stages) == 2


@pytest.mark.parametrize("password", ["PASSWORD", "...", "***", "<password>"])
def test_word_that_stands_for_a_password_is_no_secret(folder: Path, password: str) -> None:
    comment = f"# export DATABASE=postgresql://USER:{password}@HOST/NAME\n"
    file = write(folder, "telemetry", CODE, CONFIG)
    file.with_suffix(".toml").write_text(comment + file.with_suffix(".toml").read_text())
    assert len(check_file(file).plan.stages) == 2


def test_stages_in_a_circle_are_named(folder: Path) -> None:
    code = CODE.replace('sink="readings"', 'sink="raw"')
    assert "telemetry.py:5 the stages form a cycle (ingest -> store -> ingest)" in report(
        problems(write(folder, "telemetry", code, CONFIG))
    )


def test_dead_letters_that_come_back_to_their_stage_are_a_cycle(folder: Path) -> None:
    code = CODE.replace('consumer_group="ingest"', 'consumer_group="ingest", dead_letters="raw"')
    text = report(problems(write(folder, "telemetry", code, CONFIG)))
    assert "telemetry.py:5 the stages form a cycle (ingest -> ingest). Let one of them write somewhere else" in text


def test_stage_that_reads_dead_letters_comes_after_the_one_that_writes_them(folder: Path) -> None:
    code = CODE.replace('consumer_group="ingest"', 'consumer_group="ingest", dead_letters="bad"').replace(
        'source="clean"', 'source="bad"'
    )
    config = CONFIG + '[datasets.bad]\nhub = "local:./hubs/bad"\ncreate_if_missing = true\n'
    assert checked(folder, code, config).plan.levels == (("ingest",), ("store",))


def test_two_stages_that_would_write_one_checkpoint_are_refused(folder: Path) -> None:
    code = CODE.replace('source="clean", sink="readings"', 'source="raw", sink="spare"').replace(
        'consumer_group="store"', 'consumer_group="ingest"'
    )
    config = CONFIG + '[datasets.spare]\nformat = "noop"\n'
    text = report(problems(write(folder, "telemetry", code, config)))
    assert "the stages ingest and store have the same owners and checkpoints: consumer group ingest" in text


def test_partitions_stay_in_place_without_checkpoints_if_they_are_fixed(folder: Path) -> None:
    options = "checkpoint='never', starting_position='time:-24h', load_balancing="
    code = CODE.replace("load_balancing=hubline.Balanced()", f"{options}'fixed:2'")
    (ingest, _) = checked(folder, code).plan.stages
    assert ingest.store is not None
    assert guarantees(ingest)[-2:] == [
        "progress: none is kept; every start begins at time:-24h",
        "each instance keeps 2 partitions, and releases none while it runs",
    ]

    text = report(problems(write(folder, "telemetry", code.replace("'fixed:2'", "'balanced'"), CONFIG)))
    assert "load_balancing='balanced' does not go with checkpoint='never'" in text
    assert "Fixed(n), which keeps partitions in place, with checkpoint='never'" in text


def test_stages_are_shared_by_default_where_their_store_is_for_several_machines(folder: Path) -> None:
    code = CODE.replace(", load_balancing=hubline.Balanced()", "")
    pipeline = load(write(folder, "telemetry", code, CONFIG))

    def shared(**overrides: str) -> list[str]:
        given = {name.replace("__", "."): value for name, value in overrides.items()}
        plan, _ = build_plan(pipeline, read_config(folder / "telemetry.toml", given, pipeline="telemetry")[0])
        return [stage.name for stage in plan.stages if stage.is_shared_by_default]

    assert shared() == []
    postgres = "postgresql://me@127.0.0.1:1/none"
    assert shared(run__store=postgres, datasets__readings__url=postgres) == ["ingest"]  # the other says how
    assert shared(run__store=postgres, stages__ingest__load_balancing="greedy") == []
    assert shared(run__store=postgres, stages__ingest__checkpoint="never") == []


@pytest.mark.parametrize(
    ("checkpoint", "position"),
    [
        (Checkpoint(KEY, "70", 7), "sequence:7"),
        (Checkpoint(KEY, "70", -1), "offset:70"),
        (Checkpoint.before_oldest(KEY, 5), "sequence:4"),
        (Checkpoint.before_first(KEY), "earliest"),
    ],
)
def test_a_checkpoint_that_somebody_set_is_a_position_that_the_source_takes(
    checkpoint: Checkpoint, position: str
) -> None:
    assert start_after(checkpoint) == position
    parse_position(position)


def test_two_stages_that_would_give_the_same_ids_in_one_hub_are_reported(folder: Path) -> None:
    code = CODE.replace('source="clean", sink="readings"', 'source="raw", sink="clean"')
    text = report(problems(write(folder, "telemetry", code, CONFIG)))
    assert "telemetry.py:9 the stages ingest and store publish events made of the same source events" in text
    code = code.replace('trigger_interval="5s"', "event_ids=False")
    assert len(checked(folder, code).plan.stages) == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("checkpoint='never'", "does not go with a table"),
        ("checkpoint='sometimes'", "checkpoint: it must be every_batch, manual or never, not 'sometimes'"),
        ("dead_letters='clean'", "dead letters of a table go into its database"),
        ("load_balancing='fair'", "load_balancing: 'fair' is not a load balancing strategy. Write"),
        ("starting_position='yesterday'", "position 'yesterday' is unknown"),
        ("lookback='0s'", "lookback: it must be longer than 0 seconds"),
        ("output_mode='update'", "the table has no key"),
        ("max_batch_size=0", "max_batch_size: it must be a whole number, 1 or more"),
        ("queries=0", "queries: it must be a whole number, 1 or more and at most 64"),
        ("load_balancing='fixed:6', queries=4", "queries=4 cannot share the 6 partitions of Fixed(6) evenly"),
        ("consumer_group='a/b'", "consumer group 'a/b' is not allowed"),
    ],
)
def test_options_that_cannot_be_are_reported(folder: Path, options: str, says: str) -> None:
    name = options.partition("=")[0]
    kept = [each for each in ("consumer_group='store'", "load_balancing='all'") if not each.startswith(name)]
    code = f"""
        import hubline
        pipeline = hubline.Pipeline("telemetry")
        @pipeline.stage(source="raw", sink="readings", {", ".join([*kept, options])})
        def store(events):
            return events
    """
    found = problems(write(folder, "telemetry", code, CONFIG))
    assert says in report(found)
    assert [each.line for each in found] == [3]


def test_functions_are_asked_what_they_take(folder: Path) -> None:
    code = CODE.replace("def store(events):", "def store(events, devices):").replace(
        "def ingest(events):", "def ingest():"
    )
    text = report(problems(write(folder, "telemetry", code, CONFIG)))
    assert "stage store: there is no dataset devices (a parameter of the function)" in text
    assert "stage ingest: its function takes 0 parameters, and is given 1" in text


def test_what_is_not_there_is_reported(folder: Path) -> None:
    database = sqlite3.connect(folder / "results.db")
    database.execute("CREATE TABLE readings (id INTEGER)")
    database.close()
    config = CONFIG.replace("hubs/raw", "hubs/rwa").replace(
        'table = "readings"', 'table = "readings"\n    upsert_key = ["name"]'
    )
    text = report(problems(write(folder, "telemetry", CODE, config)))
    assert f"telemetry.toml:2 there is no hub local:{folder}/hubs/rwa (dataset raw). Create it" in text
    assert "telemetry.toml:11 table readings in sqlite" in text
    assert "has no column name, which upsert_key names. Use one of its columns: id" in text


def test_a_table_that_nobody_makes_is_missed(folder: Path) -> None:
    config = CONFIG.replace('table = "readings"\n    create_if_missing = true', 'table = "readings"')
    assert "there is no table readings" in report(problems(write(folder, "telemetry", CODE, config)))


def test_a_store_that_cannot_be_reached_is_reported(folder: Path) -> None:
    config = CONFIG + '[run]\nstore = "postgresql://me@127.0.0.1:1/none"\n'
    text = report(problems(write(folder, "telemetry", CODE, config)))
    assert "telemetry.toml:13 the store postgresql://me@127.0.0.1:1/none cannot be used: the PostgreSQL store" in text
    assert "cannot be reached" in text


def test_configuration_overrides_options_of_stages_and_the_command_line_has_the_last_word(folder: Path) -> None:
    config = (
        CONFIG + '[stages.store]\nload_balancing = "fixed:8"\nmax_batch_size = 7\n[spark]\nspark.ui.enabled = false\n'
    )
    file = write(folder, "telemetry", CODE, config)
    settings = {"stages.store.max_batch_size": "9", "run.spark_checkpoints": "./other", "spark.spark.cores.max": "2"}
    plan = check_file(file, overrides=settings).plan
    assert (plan.stages[1].options.load_balancing, plan.stages[1].options.max_batch_size) == ("fixed:8", 9)
    assert plan.stages[1].folder == f"{folder}/other/store"
    assert plan.run.spark == {"spark.ui.enabled": "false", "spark.cores.max": "2"}


@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        ("stages.stoer.group", "x", "--set stages.stoer.group:0 there is no stage stoer. Did you mean store?"),
        (
            "datasets.claen.create_if_missing",
            "true",
            "--set datasets.claen.create_if_missing:0 no stage uses a dataset claen. Did you mean clean?",
        ),
        ("run.master", "lokal[2]", "Spark knows no master 'lokal[2]'. Did you mean local[4]?"),
        ("stages.store.on_data_loss", "oldest", "it must be fail, earliest or latest, not 'oldest'"),
    ],
)
def test_settings_of_the_command_line_that_change_nothing_are_reported(
    folder: Path, setting: str, value: str, says: str
) -> None:
    file = write(folder, "telemetry", CODE, CONFIG)
    with pytest.raises(PipelineInvalid) as raised:
        check_file(file, overrides={setting: value})
    assert says in report(list(raised.value.problems))


@pytest.mark.parametrize(
    "master", ["local", "local[*]", "local[2,8]", "spark://a:7077,b:7077", "yarn", "k8s://https://a"]
)
def test_masters_that_spark_knows_are_taken(master: str) -> None:
    assert Request(master=master).master == master


@pytest.mark.parametrize("master", ["", "Local", "local[x]", "local[0]", "spark://host", "http://host:80", "localhost"])
def test_masters_that_spark_does_not_know_are_refused(master: str) -> None:
    with pytest.raises(ConfigError, match=r"Spark knows no master"):
        Request(master=master)


def test_state_folder_that_cannot_be_made_is_reported(folder: Path) -> None:
    (folder / "taken").touch()
    file = write(folder, "telemetry", CODE, CONFIG + '[run]\nspark_checkpoints = "./taken/state"\n')
    text = report(problems(file))
    assert f"telemetry.toml:13 the folder {folder}/taken/state cannot be created. {folder}/taken is a file" in text
    plan = check_file(file, overrides={"run.spark_checkpoints": "./state"}).plan
    taken = replace(plan, run=replace(plan.run, spark_checkpoints="./taken/state"))  # by then
    with (
        pytest.raises(ConfigError, match=r"taken/state cannot be written to .*--set run.spark_checkpoints=PATH"),
        locked(taken),
    ):
        pass


def test_plan_says_that_lost_events_are_passed(folder: Path) -> None:
    file = write(folder, "telemetry", CODE, CONFIG + '[stages.store]\non_data_loss = "latest"\n')
    ingest, store = check_file(file).plan.stages
    assert any(
        "reading continues at the latest event, and the run reports the data loss" in each for each in guarantees(store)
    )
    assert not any("data loss" in each for each in guarantees(ingest))


def test_stages_are_chosen_by_name(folder: Path) -> None:
    file = write(folder, "telemetry", CODE, CONFIG)
    assert [stage.name for stage in check_file(file, stages=["store"]).plan.stages] == ["store"]
    with pytest.raises(ConfigError, match=r"there is no stage 'stoer'. Did you mean store"):
        check_file(file, stages=["stoer"])


def test_functions_stay_what_they_are(folder: Path) -> None:
    pipeline = hubline.Pipeline("telemetry")

    @pipeline.event_stage(source="raw", sink="clean", schema="body binary")
    def twice(number: int) -> int:
        return 2 * number

    assert twice(2) == 4
    assert repr(pipeline) == "Pipeline('telemetry', twice)"


def test_plan_prints_what_would_run_and_ends_with_7_where_it_could_not(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(write(folder, "telemetry", CODE, CONFIG))
    assert main(["plan", file]) == ExitCode.OK
    printed = capsys.readouterr().out
    assert "ingest: local:" in printed
    assert "  hub local:" in printed
    assert main(["plan", file, "--json", "--stage", "store"]) == ExitCode.OK
    assert '"stage":"store"' in capsys.readouterr().out
    for verb in ("plan", "run"):
        assert main([verb, file, "--set", "datasets.raw.hub=local:./hubs/none"]) == ExitCode.CHECKS_FAILED
        said = capsys.readouterr().err
        assert said.startswith("--set datasets.raw.hub: there is no hub")
        assert said.endswith("hubline: found 1 problem. Nothing was started.\n")
    assert main(["plan", file, "--stage", "none"]) == ExitCode.USAGE
    for other in ("none.py", ".", str(Path(file).with_suffix(".toml"))):
        assert main(["plan", other]) == ExitCode.CHECKS_FAILED


def test_an_unknown_table_is_reported_where_it_begins(tmp_path: Path) -> None:
    file = tmp_path / "telemetry.toml"
    file.write_text("[datasets.raw]\nhub = 'local:raw'\n\n[stage.store]\ngroup = 'store'\n[stage.ingest]\n")

    found, problems = read_toml(file, {})

    assert problems == []
    assert [found.where(*path).line for path in [("stage",), ("stage", "ingest"), ("config", "raw", "table")]] == [
        4,
        6,
        1,
    ]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("hub = ", "hubb = ", "toml:2 the key hubb is unknown. Did you mean hub?"),
        ("create_if_missing = true", 'create_if_missing = "yes"', "create_if_missing must be true or false, not 'yes'"),
        ("create_if_missing", "create_if_mising", "key create_if_mising is unknown. Did you mean create_if_missing?"),
        ("table = ", "tabel = ", "the key tabel is unknown. Did you mean table?"),
        ("[datasets.raw]", "[dataset.raw]", "toml:1 the key dataset is unknown. Did you mean datasets?"),
        ("[datasets.raw]", "[run]\nmasster = 'x'\n[datasets.raw]", "toml:2 the key masster is unknown"),
        ("[datasets.raw]", "[spark]\n'cores.max' = 2\n[datasets.raw]", "no setting cores.max. Write its whole name"),
        ("[datasets.raw]", "[stages.store]\ngroup = 'x'\n[datasets.raw]", "Did you mean consumer_group?"),
    ],
)
def test_unknown_keys_and_values_of_another_type_are_named(folder: Path, old: str, new: str, says: str) -> None:
    assert says in report(problems(write(folder, "telemetry", CODE, CONFIG.replace(old, new, 1))))


@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        (
            "datasets.readings.url",
            "postgresql://me@127.0.0.1:1/none",
            "the database of dataset readings, postgresql://",
        ),
        ("datasets.clean.create_if_missing", "maybe", "create_if_missing must be true or false, not 'maybe'"),
        ("datasets.readings.upsert_key", "name", "has no column name, which upsert_key names"),
        ("stages.store.checkpoint", "never", "stage store: checkpoint='never' does not go with a table"),
        ("stages.store.lookback", "0s", "stage store: lookback: it must be longer"),
        ("stages.ingest.dead_letters", "daed", "stage ingest: there is no dataset daed (dead_letters)"),
        ("stages.ingest.drop_duplicates", "ordered", "stage ingest: drop_duplicates is for tables"),
        ("run.spark_checkpoints", "taken/below", "taken/below cannot be created"),
    ],
)
def test_problems_with_a_setting_of_the_command_line_name_it_and_no_line_of_a_file(
    folder: Path, setting: str, value: str, says: str
) -> None:
    (folder / "taken").touch()
    database = sqlite3.connect(folder / "results.db")
    database.execute("CREATE TABLE readings (id INTEGER)")
    database.close()
    found = problems(write(folder, "telemetry", CODE, CONFIG), **{setting: value})
    assert {(each.file, each.line) for each in found} == {(f"--set {setting}", 0)}
    assert any(says in each.message for each in found)


def test_a_database_that_is_down_is_reported_with_its_dataset_its_address_and_what_to_do(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE", "postgresql://me:pLaNtEd@127.0.0.1:1/none")
    config = CONFIG.replace('url = "sqlite:///results.db"', 'url = "env:DATABASE"')
    (found,) = problems(write(folder, "telemetry", CODE, config))
    assert f"{Path(found.file).name}:{found.line}" == "telemetry.toml:9"
    assert "the database of dataset readings, postgresql://me@127.0.0.1:1/none, cannot be used" in found.message
    assert "refused" in found.message.casefold()
    assert found.message.endswith("Check the address, and that the database is running.")
    assert "pLaNtEd" not in str(found)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"checkpoint": False}, "checkpoint: it must be every_batch, manual or never, not False"),
        (
            {"on_data_loss": "fial"},
            r"on_data_loss: it must be fail, earliest or latest, not 'fial'",
        ),
        ({"max_batch_size": "10"}, "max_batch_size: it must be a whole number"),
        ({"group": "x"}, r"stage has no option group. Did you mean consumer_group\?"),
    ],
)
def test_options_are_checked_where_they_are_given(options: dict[str, Any], says: str) -> None:
    pipeline = hubline.Pipeline("telemetry")
    with pytest.raises(ConfigError, match=says):
        pipeline.stage(source="raw", sink="clean", **options)


def test_files_that_are_loaded_at_once_leave_options_checked_where_they_are_given() -> None:
    both = threading.Barrier(2, timeout=30)

    def load_first() -> None:
        with loading():
            both.wait()
            both.wait()

    def load_second() -> None:
        both.wait()
        with loading():
            both.wait()
            first.join()

    first, second = threading.Thread(target=load_first), threading.Thread(target=load_second)
    first.start()
    second.start()
    second.join()
    with pytest.raises(ConfigError, match="max_batch_size"):
        hubline.Pipeline("telemetry").stage(source="raw", sink="clean", max_batch_size="many")  # type: ignore[arg-type]
