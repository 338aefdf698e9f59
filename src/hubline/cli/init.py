"""``hubline init``: a small project that runs at once."""

from __future__ import annotations

import enum
import keyword
import re
import sys
from importlib import metadata, resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Final

import typer

from hubline.addresses.names import validated
from hubline.cli.arguments import env_variable, option
from hubline.cli.exit_codes import say
from hubline.errors import ConfigError


class Template(enum.StrEnum):
    """What a project is made of. Each is a directory of package data, and `both` has the files of every project."""

    PIPELINE = "pipeline"
    PROCESSOR = "processor"


# The name of the project in the templates.
PLACEHOLDER: Final = "project_name"
# It names a Python module and a consumer group, which has at most 50 characters.
NAME: Final = re.compile("[a-z][a-z0-9_]*")
NAME_RULE: Final = "the characters a-z, 0-9 and '_', starting with one of a-z"
NAME_LENGTH_MAX: Final = 40

_COMMANDS: Final = re.compile(r"^\$ (.+)$", re.MULTILINE)


def init(
    # Not HUBLINE_NAME, which others may well use for something else.
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            envvar=env_variable("init-name"),
            help="The name of the project, of its directory and of its Python file.",
        ),
    ] = "telemetry",
    template: Annotated[
        Template, option("--template", "pipeline runs on Spark and needs Java; processor needs neither.")
    ] = Template.PIPELINE,
) -> None:
    """Create a small project that runs at once.

    The project has a pipeline (or a processor) that takes events from a local hub into a table, some events, a test and
    a README. The command never overwrites a file. It prints the commands to type next.

    \b
    Examples:
      hubline init
      hubline init orders
      hubline init orders --template processor
    """
    folder = Path(_checked(name))
    texts = {folder / file: text for file, text in project(name, template).items()}
    for path in (folder, *texts):
        if path.is_symlink() or (path.exists() and (path in texts or not path.is_dir())):
            raise ConfigError(f"{path} exists already. Nothing was written. Move it away, or choose another NAME.")
    folder.mkdir(exist_ok=True)
    for path, text in texts.items():
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
        print(f"wrote {path}")
    print(f"\nTo run it:\n  cd {folder}")
    for command in _COMMANDS.findall("\n".join(texts.values())):  # the only ones are in the README
        print(f"  {command}")
    if template is Template.PIPELINE:
        _warn_of_missing_spark()


def project(name: str, template: Template) -> dict[str, str]:
    """The texts of a project's files, by their names."""
    templates = resources.files("hubline.cli") / "templates"
    files: list[Traversable] = [each for kind in ("both", template.value) for each in (templates / kind).iterdir()]
    return {
        file.name.replace(PLACEHOLDER, name): file.read_text(encoding="utf-8").replace(PLACEHOLDER, name)
        for file in sorted(files, key=lambda file: file.name)
        if file.is_file()  # pip keeps compiled Python beside them
    }


def _checked(name: str) -> str:
    validated("name of the project", name, NAME, length_max=NAME_LENGTH_MAX, rule=NAME_RULE)
    taken = {*keyword.kwlist, *sys.stdlib_module_names, *metadata.packages_distributions(), "hubline", "show_rows"}
    if name in taken:
        raise ConfigError(
            f"{name!r} can't name a project: Python has a word or a module of that name. Choose another NAME."
        )
    return name


def _warn_of_missing_spark() -> None:
    """Says what the project lacks to run, as `hubline doctor --environment` does."""
    from hubline.doctor.examine_environment import spark_and_java
    from hubline.doctor.findings import Severity

    missing = [each for each in spark_and_java() if each.severity is not Severity.OK]
    for each in missing:
        say(f"hubline: {each.message}. Fix: {each.fix}")
    if missing:
        say("hubline: a project that needs neither Spark nor Java: hubline init NAME --template processor")
