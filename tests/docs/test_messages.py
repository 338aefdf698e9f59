"""Messages of errors are whole sentences that say what to do, and are all on one page."""

from __future__ import annotations

import re

import pytest

from hubline import errors
from hubline.cli.exit_codes import exit_code_of
from hubline.secrets import names_secret
from tests.support.messages import PAGE, PASSED_ON, is_for_people, messages, page, problems_of

MESSAGES = messages()


def test_every_message_says_what_to_do() -> None:
    wrong = [
        f"{each.module}.{each.function}: {each.text}: {problem}"
        for each in MESSAGES
        if is_for_people(each.module, each.function, each.error)
        for problem in problems_of(each.text)
    ]
    assert wrong == []


def test_no_message_shows_a_value_that_is_secret_by_its_name() -> None:
    names = {(each.text, name) for each in MESSAGES for name in re.findall(r"\{(\w+)\}", each.text)}
    assert [text for text, name in names if names_secret(name)] == []


def test_only_functions_that_are_there_pass_messages_on() -> None:
    assert {f"{each.module}.{each.function}" for each in MESSAGES} >= PASSED_ON


def test_the_page_has_every_message() -> None:
    assert PAGE.read_text() == page(), "run: make messages"


@pytest.mark.parametrize(
    "text",
    ["the hub is not there", "it is closed: open another one.", "the port is not a number.",
     "the name is empty. Give one"],
)  # fmt: skip
def test_a_clipped_message_is_found(text: str) -> None:
    assert list(problems_of(text))


@pytest.mark.parametrize(
    "text",
    ["the hub does not exist. Create it.", "count must be 1 or more, not 0.", "there is no stage a. Did you mean b?",
     "the lease expired. hubline claims the partition again.", "it is unknown. If it is yours, correct its name."],
)  # fmt: skip
def test_a_whole_message_is_not(text: str) -> None:
    assert list(problems_of(text)) == []


def test_the_table_of_errors_has_each_type_with_its_exit_code() -> None:
    rows = [line.split(" | ") for line in (PAGE.parent / "errors.md").read_text().splitlines() if line[:3] == "| `"]
    shown = {re.sub("[|` ]", "", row[0]): row[2] for row in rows}
    types = {
        name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)
    }
    assert shown.keys() == types.keys() - {"HublineError"}
    codes = {
        name: str(exit_code_of(kind.__new__(kind)).value)
        for name, kind in types.items()
        if shown.get(name, "").isdigit()
    }
    assert {name: code for name, code in shown.items() if code.isdigit()} == codes
