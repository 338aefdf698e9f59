"""Shapes of secrets: what is found in files is also hidden in texts."""

from __future__ import annotations

import pytest

from hubline.secrets import SHAPES, names_secret, redact, secrets_in

PLANTED = "pLaNtEdSeCrEt/1+2%3D="
KEY = "pLaNtEdSeCrEt1234"

WRITTEN = {
    f"Endpoint=sb://a.b/;SharedAccessKeyName=x;SharedAccessKey={PLANTED}": "a shared access key",
    f"SharedAccessSignature sr=sb%3a%2f%2fa&sig={KEY}&se=1&skn=x": "a shared access signature",
    f"https://a.b/c?sv=1&sig={KEY}": "a signature",
    f"AccountName=x;AccountKey={PLANTED}": "an account key",
    f"Authorization: Bearer eyJ{KEY}.eyJ{KEY}.{KEY}": "a token",
    f"url = 'postgresql://me:{KEY}@db/x'": "a password in a URL",
    f"jdbc:postgresql://db/x?user=me&password={KEY}": "a password",
    f'DB_PASSWORD = "{KEY}"': "a password",
    f"options['password'] = '{KEY}'": "a password",
}


@pytest.mark.parametrize(("text", "what"), WRITTEN.items())
def test_secret_in_a_file_is_named_with_its_line_and_hidden_in_texts(text: str, what: str) -> None:
    (problem,) = secrets_in(f"\n{text}\n", "x.toml")
    assert (problem.file, problem.line, problem.message) == ("x.toml", 2, f"the line holds {what}")
    assert "pLaNtEd" not in str(problem)
    assert "pLaNtEd" not in redact(f"it failed: {text}, and nobody knows why")
    assert not secrets_in(redact(text), "")


@pytest.mark.parametrize(
    "text",
    [
        f'{{"client_secret": "{KEY}"}}',
        f'{{"access_token":"{KEY}","expires_in":3600}}',
        f'"{{\\"client_secret\\": \\"{KEY}\\"}}"',
        f"{{'client_secret': '{KEY}'}}",
        f"client_secret: {KEY}",
        f"client-secret: '{KEY}'",
        f"refresh_token: {KEY}",
        f"az login --client-secret {KEY}",
        f"az login --client-secret '{KEY} {KEY}'",
        f"tool --password={KEY}",
        f"eyJ{KEY}.eyJ{KEY}",
        f"token_eyJ{KEY}.eyJ{KEY}.{KEY}",
        f"a-eyJ{KEY}.eyJ{KEY}.{KEY}",
        f"Bearer%20eyJ{KEY}.eyJ{KEY}.{KEY}",
    ],
)
def test_secret_in_the_text_of_a_program_is_hidden(text: str) -> None:
    assert "pLaNtEd" not in redact(f"it failed: {text}, and nobody knows why")


def test_every_shape_has_an_example() -> None:
    assert {shape.what for shape in SHAPES} == set(WRITTEN.values())


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://USER:PASSWORD@HOST/NAME",
        'password = os.environ["PASSWORD"]',
        'password = "env:DATABASE_PASSWORD"',
        '{"password": "string"}',
        'hub = "eventhubs://acme.servicebus.windows.net/orders"',
    ],
)
def test_placeholder_look_up_and_column_are_not_accused(text: str) -> None:
    assert not secrets_in(text, "")


def test_text_without_secrets_stays_as_it_is() -> None:
    text = "stage store: `bodi` is not a column of local:/data/raw, at postgresql://me@db:5432/telemetry"
    assert redact(text) == text


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [("fs.azure.account.key", True), ("db_password", True), ("password.file", False), ("accessKeyId", False)],
)
def test_name_of_a_setting_tells_whether_it_holds_a_secret(name: str, is_secret: bool) -> None:
    assert names_secret(name) is is_secret
