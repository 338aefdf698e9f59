"""What is wrong with a pipeline is told before anything starts: all of it, with file and line, and what to do."""

from __future__ import annotations

import asyncio
import codecs
import json
import os
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

import hubline
from hubline.cli.app import main
from hubline.cli.exit_codes import ExitCode
from hubline.errors import ConfigError, PipelineInvalid, Problem
from hubline.hubs.local import create_hub
from hubline.pipeline.checks import Checked, checked_file
from hubline.pipeline.config_file import read_toml
from hubline.pipeline.datasets import FormatPlace
from hubline.pipeline.guarantees import promises
from hubline.pipeline.runner import Request, locked
from hubline.secrets import Secret
from tests.pipeline.files import write

PLANTED = "hUnTeR2pLaNtEdSeCrEt"
CODE = """
    import hubline

    pipeline = hubline.Pipeline("telemetry")

    @pipeline.stage(source="raw", to="clean", group="ingest", ownership=hubline.Balanced())
    def ingest(events):
        return events

    @pipeline.stage(source="clean", to="readings", group="store", ownership=hubline.Fixed(2), trigger_interval="5s")
    def store(events):
        return events
"""
PLACES = """
    [places.raw]
    hub = "local:./hubs/raw"

    [places.clean]
    hub = "local:./hubs/clean"
    create = true

    [places.readings]
    url = "sqlite:///results.db"
    table = "readings"
    create = true
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
        checked_file(file, settings=given)
    assert PLANTED not in str(raised.value)
    return list(raised.value.problems)


def told(found: list[Problem]) -> str:
    return "\n".join(f"{Path(each.file).name}:{each.line} {each.message}: {each.fix}" for each in found)


def checked(folder: Path, code: str = CODE, places: str = PLACES) -> Checked:
    return checked_file(write(folder, "telemetry", code, places))


def test_a_plan_knows_stages_their_promises_and_what_would_be_made(folder: Path) -> None:
    found = checked(folder)
    ingest, store = found.plan.stages
    assert found.plan.levels == (("ingest",), ("store",))
    assert (ingest.ownership, store.ownership, store.batch_wait_ms) == ("balanced", "fixed:2", 5000)
    assert "the same id each time" in promises(ingest)[0]
    assert promises(store)[0].startswith("exactly once")
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


def test_all_problems_are_told_at_once_with_their_lines(folder: Path) -> None:
    code = CODE.replace('to="clean"', 'to="claen"').replace('trigger_interval="5s"', 'trigger_interval="soon"')
    places = PLACES.replace("table =", "tabel =") + "[runn]\nstate = 'x'\n"
    found = problems(write(folder, "telemetry", code, places))
    text = told(found)
    assert "telemetry.py:5 stage ingest: there is no place claen (to): did you mean clean?" in text
    assert "telemetry.py:9 stage store: trigger_interval: the duration 'soon' is unknown" in text
    assert "telemetry.toml:10 the key tabel is unknown: did you mean table?" in text
    assert "the key runn is unknown: did you mean run?" in text
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
            "import hubline\npipeline = hubline.Pipeline('t')\n@pipeline.stage(source='raw', to='clean', grup='x')\n"
            "def f(e): ...\n",
            "telemetry.py:3 stage has no option grup: did you mean group?",
        ),
        (
            "import hubline\npipeline = hubline.Pipeline('t')\n@pipeline.stage(source='raw', to='clean')\n"
            "def f(e): return e\n\npipeline.run()\n",
            "telemetry.py:6 the file runs its pipeline when it is imported",
        ),
        ("import hubline\n\nhubline.Pipeline('a b')\n", "telemetry.py:3 the pipeline's name 'a b' is not allowed"),
        ("import os\nimport no_such_module\n", "telemetry.py:2 importing the file raises ModuleNotFoundError"),
        ("import hubline\n\nimport beside\n", "telemetry.py:3 importing the file raises ZeroDivisionError"),
        (f"{HEAD}@pipeline.stage\ndef f(e): ...\n", "telemetry.py:3 stage says nothing of its places: write @pipe"),
        (f"{HEAD}@pipeline.stage(to='clean')\ndef f(e): ...\n", "telemetry.py:3 stage lacks source: write @pipeline"),
        (f"{HEAD}@pipeline.stage(source=5, to='clean')\ndef f(e): ...\n", "telemetry.py:3 source and to are names"),
        (f"{HEAD}@pipeline.stage(source=[], to='clean')\ndef f(): ...\n", "telemetry.py:3 source and to are names"),
        (
            f"{HEAD}@pipeline.stage(source=['raw', 'raw'], to='clean')\ndef f(a, b): ...\n",
            "telemetry.py:3 stage f: it reads one hub twice",
        ),
        (
            f"{HEAD}@pipeline.stage(source='raw', to='clean')\nasync def f(e): ...\n",
            "telemetry.py:3 stage f: its function is async",
        ),
        (
            f"{HEAD}@pipeline.events(source='raw', to='clean', schema='id long')\ndef f(e): yield {{}}\n",
            "telemetry.py:3 stage f: its function is a generator",
        ),
        (
            f"{HEAD}@pipeline.events(source='raw', to='clean', schema=['id long'])\ndef f(e): ...\n",
            "telemetry.py:3 stage f: a handler needs the columns",
        ),
        (
            f"{HEAD}@pipeline.stage(source='raw', to='clean', group=7)\ndef f(e): ...\n",
            "telemetry.py:3 stage f: group: it is text in quotes, and not int",
        ),
        (f"import hubline\nHUB = 'SharedAccessKey={PLANTED}='\n", "telemetry.py:2 there is a shared access key"),
        ("import hubline\n\nreturn 5\n", "telemetry.py:3 the line is not Python ('return' outside function)"),
        (
            f"{HEAD}@pipeline.stage(source='raw', to='clean', dead_letters=['raw'])\ndef f(e): ...\n",
            "telemetry.py:3 dead_letters is text in quotes, and not list",
        ),
        (
            f"{HEAD}@pipeline.stage(source='raw', to='clean', name=5)\ndef f(e): ...\n",
            "telemetry.py:3 name is text in quotes, and not int",
        ),
        (
            f"{HEAD}pipeline.stage(source='raw', to='clean')(None)\n",
            "telemetry.py:3 stage stage: its function cannot be called: give a plain function",
        ),
    ],
)
def test_what_is_wrong_with_the_file_is_told_with_its_line(folder: Path, code: str, says: str) -> None:
    (folder / "beside.py").write_text("1 / 0\n")
    file = write(folder, "telemetry", code, PLACES)
    assert says in told(problems(file))
    assert told(problems(Path(file.name))) == told(problems(file))  # as a person types it


def test_stages_are_not_blamed_for_places_in_a_file_that_is_no_toml(folder: Path) -> None:
    (found,) = problems(write(folder, "telemetry", CODE, PLACES + "[places.spare\n"))
    assert "the line is not TOML" in told([found])


@pytest.mark.parametrize(
    "option", ["checkpoint", "group", "ownership", "start", "max_batch_size", "trigger_interval", "on_data_loss",
               "drop_duplicates", "mode", "identity"],
)  # fmt: skip
def test_none_is_no_option_where_there_is_a_default(folder: Path, option: str) -> None:
    code = f"{HEAD}@pipeline.stage(source='raw', to='clean', {option}=None)\ndef f(e): return e\n"
    (found,) = problems(write(folder, "telemetry", code, PLACES))
    assert f"telemetry.py:3 stage f: {option}: it cannot be None: leave it out" in told([found])


@pytest.mark.parametrize("key", ["tables", "function", "where", "name"])
def test_what_is_no_option_of_a_stage_in_the_places_is_told_and_changes_nothing(folder: Path, key: str) -> None:
    (found,) = problems(write(folder, "telemetry", CODE, PLACES + f"[stages.store]\n{key} = 'x'\n"))
    assert f"telemetry.toml:13 the key {key} is unknown" in told([found])


@pytest.mark.parametrize(
    "setting", [{"run__state": "~nosuchuser/s"}, {"places__readings__format": "csv", "places__readings__path": "~no/s"}]
)
def test_home_of_nobody_is_no_folder(folder: Path, setting: dict[str, str]) -> None:
    places = PLACES.replace('url = "sqlite:///results.db"', "").replace('table = "readings"\n    create = true', "")
    file = write(folder, "telemetry", CODE, places if "run__state" not in setting else PLACES)
    (found,) = problems(file, **setting)
    assert found.file == f"--set {list(setting)[-1].replace('__', '.')}"
    assert "leads nowhere: check '~'" in found.message


def test_file_that_ends_too_early_is_told_at_its_end(folder: Path) -> None:
    (found,) = problems(write(folder, "telemetry", CODE, PLACES + "[run.spark]\nx = [\n\n"))
    assert "telemetry.toml:13 the line is not TOML" in told([found])
    assert "close quotes and brackets" in found.fix


def test_a_mark_that_editors_put_before_utf_8_is_passed_over(folder: Path) -> None:
    file = write(folder, "telemetry", CODE, PLACES)
    creations = checked_file(file).creations
    places = file.with_suffix(".toml")
    places.write_bytes(codecs.BOM_UTF8 + places.read_bytes())
    assert checked_file(file).creations == creations


def test_files_of_sparks_need_a_path(folder: Path) -> None:
    places = PLACES + '[places.spare]\nformat = "parquet"\n'
    text = told(problems(write(folder, "telemetry", CODE.replace('to="clean"', 'to="spare"'), places)))
    assert "telemetry.toml:12 the place spare has no path: add path" in text


@pytest.mark.parametrize("options", ["checkpoint='none'", "checkpoint='by hand'", "lookback='1h'"])
def test_files_are_refused_where_batches_would_be_counted_anew(folder: Path, options: str) -> None:
    places = PLACES + '[places.spare]\nformat = "parquet"\npath = "spare"\n'
    code = f"{HEAD}@pipeline.stage(source='raw', to='spare', {options})\ndef f(e): return e\n"
    assert "telemetry.py:3 stage f: files remember batches by number" in told(
        problems(write(folder, "telemetry", code, places))
    )


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ("[places.spare]\nhub = 'local:./hubs/spare'\npartitions = 0\n", "telemetry.toml:14 partitions is 1 to 1024"),
        ("[run.spark]\n'spark.jars' = ['a', 'b']\n", "telemetry.toml:13 spark.jars is a list: write one text"),
    ],
)
def test_values_of_places_that_cannot_be_are_told(folder: Path, lines: str, says: str) -> None:
    assert says in told(problems(write(folder, "telemetry", CODE, PLACES + lines)))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (f'hub = "Endpoint=sb://h/;SharedAccessKeyName=k;SharedAccessKey={PLANTED};EntityPath=e"', "shared access key"),
        (f'url = "postgresql://me:{PLANTED}@host/db"', "a password in a URL"),
        (f'url = "https://a.blob.core.windows.net/c?sv=1&sig={PLANTED}"', "a signature"),
    ],
)
def test_a_secret_in_the_places_is_told_with_its_line_and_not_shown(folder: Path, line: str, says: str) -> None:
    text = told(problems(write(folder, "telemetry", CODE, PLACES + f"[places.other]\n{line}\n")))
    assert f"telemetry.toml:13 there is {'a ' if says.startswith('shared') else ''}{says}" in text
    assert "env:NAME" in text


def test_a_secret_on_the_command_line_is_refused(folder: Path) -> None:
    file = write(folder, "telemetry", CODE, PLACES)
    assert "--set places.readings.url" in told(
        problems(file, places__readings__url=f"postgresql://me:{PLANTED}@host/db")
    )


@pytest.mark.parametrize(
    "line",
    [
        f"options = {{ 'password' = '{PLANTED}' }}",
        f"options.sfPassword = '{PLANTED}'",
        "options.password = 12345678",
        f"[run.spark]\n'spark.hadoop.fs.azure.account.key.id.dfs.core.windows.net' = '{PLANTED}=='",
        f"[run.spark]\nspark.hadoop.fs.s3a.secret.key = '{PLANTED}'",
    ],
)
def test_a_secret_in_the_places_is_known_by_its_name(folder: Path, line: str) -> None:
    places = PLACES + f"[places.other]\nformat = 'jdbc'\n{line}\n"
    (found,) = problems(write(folder, "telemetry", CODE, places))
    assert f"telemetry.toml:{13 + len(line.splitlines())} there is a" in told([found])
    assert "env:NAME or file:PATH" in found.fix


@pytest.mark.parametrize(
    "setting",
    [
        ("places.readings.options.password", PLANTED),
        ("run.spark.spark.hadoop.fs.azure.account.key.a", PLANTED),
        (f"postgresql://me:{PLANTED}@host/db?a", "b"),
    ],
)
def test_a_secret_on_the_command_line_is_known_by_its_name(folder: Path, setting: tuple[str, str]) -> None:
    (found,) = problems(write(folder, "telemetry", CODE, PLACES), **dict([setting]))
    assert found.file.startswith("--set ")
    assert "every user can list command lines" in found.fix


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
    assert len(checked(folder, CODE, PLACES + "[run.spark]\n" + "".join(lines)).plan.run.spark) == len(settings)


@pytest.mark.parametrize("line", ["DB_PASSWORD = '{}'", "options['password'] = '{}'"])
def test_a_password_in_the_pipeline_is_told_with_its_line(folder: Path, line: str) -> None:
    file = write(folder, "telemetry", CODE, PLACES)
    file.write_text(f"{line.format(PLANTED)}\n{file.read_text()}")
    assert "telemetry.py:1 there is a password in it" in told(problems(file))


@pytest.mark.parametrize("option", ["source", "to", "dead_letters"])
def test_an_address_in_place_of_a_name_is_not_shown(folder: Path, option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB", f"postgresql://me:{PLANTED}@host/db")
    given = {"source": "'raw'", "to": "'clean'", option: "os.environ['DB']"}
    options = ", ".join(f"{name}={value}" for name, value in given.items())
    code = f"import os\n{HEAD}@pipeline.stage({options})\ndef f(e): return e\n"
    file = write(folder, "telemetry", code, PLACES)
    (found,) = problems(file)
    assert f"telemetry.py:4 stage f: there is no place (not shown, it may hold a secret) ({option})" in told([found])
    assert "write its address under [places.NAME]" in found.fix
    assert len(problems(file, places__readings__create="true")) == 2  # places that are used are named without it


def test_secrets_that_are_kept_elsewhere_are_read_and_not_shown(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW", PLANTED)
    (folder / "key").write_text(f"{PLANTED}\n")
    places = f"""{PLACES}
    [places.spare]
    format = "jdbc"
    options = {{ password = "env:PW", url = "file:key", header = "file:key", path = "env:PW" }}
    [run.spark]
    "spark.hadoop.fs.azure.account.key.a" = "file:key"
    "spark.eventLog.dir" = "file:///tmp/log"
    """
    plan = checked(folder, CODE.replace('to="clean"', 'to="spare"'), places).plan
    target = plan.stages[0].target
    assert isinstance(target, FormatPlace)
    assert target.options == {
        "password": Secret(PLANTED), "url": Secret(PLANTED), "header": "file:key", "path": "env:PW"
    }  # fmt: skip
    assert plan.run.spark == {
        "spark.hadoop.fs.azure.account.key.a": Secret(PLANTED),
        "spark.eventLog.dir": "file:///tmp/log",
    }
    assert PLANTED not in repr(plan)


def test_secret_that_is_not_where_it_is_said_to_be_is_told(folder: Path) -> None:
    file = write(folder, "telemetry", CODE, PLACES + "[run.spark]\n'spark.acme.password' = 'env:NOWHERE'\n")
    assert "telemetry.toml:13 spark.acme.password: the environment variable 'NOWHERE' is not set" in told(
        problems(file)
    )
    (found,) = problems(file, **{"run.spark.spark.acme.password": "file:nowhere"})
    assert found.file == "--set run.spark.spark.acme.password"


def test_a_password_that_is_looked_up_is_no_secret_in_the_file(folder: Path) -> None:
    looked_up = 'import os\npassword = os.environ.get("P")\nURL = f"postgresql://me:{password}@host/db"\n'
    file = write(folder, "telemetry", CODE, PLACES)
    file.write_text(looked_up + file.read_text())
    assert len(checked_file(file).plan.stages) == 2


@pytest.mark.parametrize("password", ["PASSWORD", "...", "***", "<password>"])
def test_word_that_stands_for_a_password_is_no_secret(folder: Path, password: str) -> None:
    told_so = f"# export DATABASE=postgresql://USER:{password}@HOST/NAME\n"
    file = write(folder, "telemetry", CODE, PLACES)
    file.with_suffix(".toml").write_text(told_so + file.with_suffix(".toml").read_text())
    assert len(checked_file(file).plan.stages) == 2


def test_stages_in_a_circle_are_named(folder: Path) -> None:
    code = CODE.replace('to="readings"', 'to="raw"')
    assert "telemetry.py:5 the stages form a cycle (ingest -> store -> ingest)" in told(
        problems(write(folder, "telemetry", code, PLACES))
    )


def test_dead_letters_that_come_back_to_their_stage_are_a_cycle(folder: Path) -> None:
    code = CODE.replace('group="ingest"', 'group="ingest", dead_letters="raw"')
    text = told(problems(write(folder, "telemetry", code, PLACES)))
    assert "telemetry.py:5 the stages form a cycle (ingest -> ingest): what one of them writes, dead letters" in text


def test_stage_that_reads_dead_letters_comes_after_the_one_that_writes_them(folder: Path) -> None:
    code = CODE.replace('group="ingest"', 'group="ingest", dead_letters="bad"').replace(
        'source="clean"', 'source="bad"'
    )
    places = PLACES + '[places.bad]\nhub = "local:./hubs/bad"\ncreate = true\n'
    assert checked(folder, code, places).plan.levels == (("ingest",), ("store",))


def test_two_stages_that_would_write_one_checkpoint_are_told_apart_by_group(folder: Path) -> None:
    code = CODE.replace('source="clean", to="readings", group="store"', 'source="raw", to="spare", group="ingest"')
    places = PLACES + '[places.spare]\nformat = "noop"\n'
    text = told(problems(write(folder, "telemetry", code, places)))
    assert "the stages ingest and store write the same checkpoint: group ingest" in text


def test_two_stages_that_would_give_the_same_ids_in_one_hub_are_told(folder: Path) -> None:
    code = CODE.replace('source="clean", to="readings"', 'source="raw", to="clean"')
    text = told(problems(write(folder, "telemetry", code, PLACES)))
    assert "telemetry.py:9 the stages ingest and store publish what they make of the same events" in text
    code = code.replace('trigger_interval="5s"', "identity=False")
    assert len(checked(folder, code).plan.stages) == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("checkpoint='none'", "does not go with a table"),
        ("checkpoint='sometimes'", "checkpoint: it is 'each batch', 'by hand', 'none'"),
        ("dead_letters='clean'", "dead letters of a table go into its database"),
        ("ownership='fair'", "ownership: write 'all', hubline.Balanced()"),
        ("start='yesterday'", "position 'yesterday' is unknown"),
        ("lookback='0s'", "lookback: it has to be longer than 0 seconds"),
        ("mode='update'", "the table has no key"),
        ("max_batch_size=0", "max_batch_size: it is a whole number, 1 or more"),
        ("group='a/b'", "consumer group 'a/b' is not allowed"),
    ],
)
def test_options_that_cannot_be_are_told(folder: Path, options: str, says: str) -> None:
    name = options.partition("=")[0]
    kept = [each for each in ("group='store'", "ownership='all'") if not each.startswith(name)]
    code = f"""
        import hubline
        pipeline = hubline.Pipeline("telemetry")
        @pipeline.stage(source="raw", to="readings", {", ".join([*kept, options])})
        def store(events):
            return events
    """
    found = problems(write(folder, "telemetry", code, PLACES))
    assert says in told(found)
    assert [each.line for each in found] == [3]


def test_functions_are_asked_what_they_take(folder: Path) -> None:
    code = CODE.replace("def store(events):", "def store(events, devices):").replace(
        "def ingest(events):", "def ingest():"
    )
    text = told(problems(write(folder, "telemetry", code, PLACES)))
    assert "stage store: there is no place devices (a parameter of the function)" in text
    assert "stage ingest: its function takes 0 parameters, and is given 1" in text


def test_what_is_not_there_is_told(folder: Path) -> None:
    database = sqlite3.connect(folder / "results.db")
    database.execute("CREATE TABLE readings (id INTEGER)")
    database.close()
    places = PLACES.replace("hubs/raw", "hubs/rwa").replace(
        'table = "readings"', 'table = "readings"\n    key = ["name"]'
    )
    text = told(problems(write(folder, "telemetry", CODE, places)))
    assert f"telemetry.toml:2 there is no hub local:{folder}/hubs/rwa (place raw): create it" in text
    assert "telemetry.toml:10 table readings in sqlite" in text
    assert "has no column name, which key names: it has id" in text


def test_a_table_that_nobody_makes_is_missed(folder: Path) -> None:
    places = PLACES.replace('table = "readings"\n    create = true', 'table = "readings"')
    assert "there is no table readings" in told(problems(write(folder, "telemetry", CODE, places)))


def test_a_store_that_cannot_be_reached_is_told(folder: Path) -> None:
    places = PLACES + '[run]\nstore = "postgresql://me@127.0.0.1:1/none"\n'
    text = told(problems(write(folder, "telemetry", CODE, places)))
    assert "telemetry.toml:13 the store postgresql://me@127.0.0.1:1/none cannot be used: PostgreSQL cannot be" in text


def test_places_say_something_else_of_stages_and_the_command_line_has_the_last_word(folder: Path) -> None:
    places = (
        PLACES + '[stages.store]\nownership = "fixed:8"\nmax_batch_size = 7\n[run.spark]\nspark.ui.enabled = false\n'
    )
    file = write(folder, "telemetry", CODE, places)
    settings = {"stages.store.max_batch_size": "9", "run.state": "./other", "run.spark.spark.cores.max": "2"}
    plan = checked_file(file, settings=settings).plan
    assert (plan.stages[1].ownership, plan.stages[1].events_max) == ("fixed:8", 9)
    assert plan.stages[1].folder == f"{folder}/other/store"
    assert plan.run.spark == {"spark.ui.enabled": "false", "spark.cores.max": "2"}


@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        ("stages.stoer.group", "x", "--set stages.stoer.group:0 there is no stage stoer: did you mean store?"),
        ("places.claen.create", "true", "--set places.claen.create:0 no stage uses a place claen: did you mean clean?"),
        ("run.master", "lokal[2]", "Spark knows no master 'lokal[2]': did you mean local[4]?"),
        ("stages.store.on_data_loss", "oldest", "it must be fail, earliest or latest, not 'oldest'"),
    ],
)
def test_settings_of_the_command_line_that_change_nothing_are_told(
    folder: Path, setting: str, value: str, says: str
) -> None:
    file = write(folder, "telemetry", CODE, PLACES)
    with pytest.raises(PipelineInvalid) as raised:
        checked_file(file, settings={setting: value})
    assert says in told(list(raised.value.problems))


@pytest.mark.parametrize(
    "master", ["local", "local[*]", "local[2,8]", "spark://a:7077,b:7077", "yarn", "k8s://https://a"]
)
def test_masters_that_spark_knows_are_taken(master: str) -> None:
    assert Request(master=master).master == master


@pytest.mark.parametrize("master", ["", "Local", "local[x]", "local[0]", "spark://host", "http://host:80", "localhost"])
def test_masters_that_spark_does_not_know_are_refused(master: str) -> None:
    with pytest.raises(ConfigError, match=r"Spark knows no master"):
        Request(master=master)


def test_state_folder_that_cannot_be_made_is_told(folder: Path) -> None:
    (folder / "taken").touch()
    file = write(folder, "telemetry", CODE, PLACES + '[run]\nstate = "./taken/state"\n')
    text = told(problems(file))
    assert f"telemetry.toml:13 the state folder {folder}/taken/state cannot be made: {folder}/taken is a file" in text
    plan = checked_file(file, settings={"run.state": "./state"}).plan
    taken = replace(plan, run=replace(plan.run, state="./taken/state"))  # by then
    with pytest.raises(ConfigError, match=r"taken/state cannot be written to .*--set run.state=PATH"), locked(taken):
        pass


def test_plan_tells_that_gaps_are_jumped(folder: Path) -> None:
    file = write(folder, "telemetry", CODE, PLACES + '[stages.store]\non_data_loss = "latest"\n')
    ingest, store = checked_file(file).plan.stages
    assert any("reading goes on at the latest event, and the run tells of the gap" in each for each in promises(store))
    assert not any("gap" in each for each in promises(ingest))


def test_stages_are_chosen_by_name(folder: Path) -> None:
    file = write(folder, "telemetry", CODE, PLACES)
    assert [stage.name for stage in checked_file(file, stages=["store"]).plan.stages] == ["store"]
    with pytest.raises(ConfigError, match="there is no stage 'stoer': did you mean store"):
        checked_file(file, stages=["stoer"])


def test_functions_stay_what_they_are(folder: Path) -> None:
    pipeline = hubline.Pipeline("telemetry")

    @pipeline.events(source="raw", to="clean", schema="body binary")
    def twice(number: int) -> int:
        return 2 * number

    assert twice(2) == 4
    assert repr(pipeline) == "Pipeline('telemetry', twice)"


def test_plan_prints_what_would_run_and_ends_with_7_where_it_could_not(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(write(folder, "telemetry", CODE, PLACES))
    assert main(["plan", file]) == ExitCode.OK
    printed = capsys.readouterr().out
    assert "ingest: local:" in printed
    assert "  hub local:" in printed
    assert main(["plan", file, "--json", "--stage", "store"]) == ExitCode.OK
    assert '"stage":"store"' in capsys.readouterr().out
    for verb in ("plan", "run"):
        assert main([verb, file, "--set", "places.raw.hub=local:./hubs/none"]) == ExitCode.CHECKS_FAILED
        said = capsys.readouterr().err
        assert said.startswith("--set places.raw.hub: there is no hub")
        assert said.endswith("hubline: 1 problem: nothing was started\n")
    assert main(["plan", file, "--stage", "none"]) == ExitCode.USAGE
    for other in ("none.py", ".", str(Path(file).with_suffix(".toml"))):
        assert main(["plan", other]) == ExitCode.CHECKS_FAILED


def test_an_unknown_table_is_told_where_it_begins(tmp_path: Path) -> None:
    file = tmp_path / "telemetry.toml"
    file.write_text("[places.raw]\nhub = 'local:raw'\n\n[stage.store]\ngroup = 'store'\n[stage.ingest]\n")

    found, problems = read_toml(file, {})

    assert problems == []
    assert [found.where(*path).line for path in [("stage",), ("stage", "ingest"), ("places", "raw", "table")]] == [
        4,
        6,
        1,
    ]
