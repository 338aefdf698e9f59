"""The documentation site: what is on it, and how it works in a browser."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import pkgutil
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest

from tests.support.browser import BrowserMissing, Page, browser_page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NAV = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]

INTERNAL: Final = {"hubline.hubs.eventhubs", "hubline.checkpoint_stores.blob", "hubline.emulator"}
"""Modules whose `__all__` is for hubline's own other modules. People open what they have by an address or a command."""

DIRECTIVE = re.compile(r"^::: (\S+)$", re.MULTILINE)
IMPORT = re.compile(r"^from (hubline[\w.]*) import (.+)$", re.MULTILINE)

built_once = pytest.mark.xdist_group("site")


def test_every_page_is_in_the_navigation_once() -> None:
    listed = re.findall(r"[\w./-]+\.md", NAV)
    assert sorted(listed) == sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))


@functools.cache
def documented() -> dict[str, Any]:
    """The public names on the API pages, and what each one is. A page names single ones, or a module for all it has."""
    found: dict[str, Any] = {}
    for page in (DOCS / "reference/api").glob("*.md"):
        for name in DIRECTIVE.findall(page.read_text()):
            value = pkgutil.resolve_name(name)
            if isinstance(value, ModuleType):
                found |= {f"{name}.{each}": getattr(value, each) for each in public_names(value)}
            else:
                found[name] = value
    return found


def public_names(module: ModuleType) -> list[str]:
    """`__all__`, or what the module itself defines without an underscore."""
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    return getattr(module, "__all__", [name for name in own if not name.startswith("_")])


def is_documented(value: object) -> bool:
    return any(value is each for each in documented().values())


def test_every_public_name_is_on_an_api_page() -> None:
    source = ROOT / "src"
    files = [file for file in source.rglob("__init__.py") if "__all__" in file.read_text()]
    names = {".".join(file.parent.relative_to(source).parts) for file in files} - INTERNAL
    modules = [importlib.import_module(name) for name in sorted(names)]
    missing = [
        f"{module.__name__}.{name}"
        for module in modules
        for name in module.__all__
        if not is_documented(getattr(module, name))
    ]
    assert missing == []


def test_every_name_that_a_page_imports_is_on_an_api_page() -> None:
    imports = {
        f"{module}.{name}"
        for page in (ROOT / "README.md", *DOCS.rglob("*.md"))
        for module, names in IMPORT.findall(page.read_text())
        for name in names.split(", ")
    }
    assert [name for name in sorted(imports) if not is_documented(pkgutil.resolve_name(name))] == []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly: any warning fails here."""
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("the site generator is not installed: run `make docs` once")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    return folder


@built_once
def test_api_pages_show_every_name(site: Path) -> None:
    pages = "".join(page.read_text() for page in (site / "reference/api").glob("*.html"))
    assert [name for name in documented() if f'id="{name}"' not in pages] == []
    assert re.findall(r":(?:class|meth|func|attr|data|mod|exc):", pages) == []  # docstrings are Markdown


@built_once
def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    loading = re.compile(r"""<(?:script|link|img|iframe)[^>]*=["']?(?:https?:)?//[^>]*>|class="mermaid""")
    assert {found[0] for page in site.rglob("*.html") for found in loading.finditer(page.read_text())} == set()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    try:
        with browser_page() as page:
            yield page
    except BrowserMissing as missing:
        pytest.skip(str(missing))


def search(page: Page, words: str) -> str:
    """The text of the first result."""
    page.run("document.querySelector('label[for=__search]').click()")
    page.run(
        f"(query => {{ query.focus(); query.value = {words!r}; query.dispatchEvent(new Event('input')); "
        "query.dispatchEvent(new KeyboardEvent('keyup')) })(document.querySelector('[data-md-component=search-query]'))"
    )
    return str(page.wait_for("document.querySelector('.md-search-result__item')?.innerText"))


@built_once
def test_the_site_works_in_a_browser(site: Path, address: str, page: Page) -> None:
    page.open(f"{address}/index.html")
    assert page.run("document.querySelector('h1').innerText").startswith("hubline")
    assert page.run("document.querySelector('article img').naturalWidth") > 0

    color = "getComputedStyle(document.body).backgroundColor"
    before = page.run(color)
    page.run("document.querySelector('[data-md-component=palette] label:not([hidden])').click()")
    page.wait_for(f"{color} != {before!r}")

    assert "dead letter" in search(page, "dead letters").lower()

    page.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    page.open(f"{address}/tutorials/first-processor.html")
    page.wait_for("document.querySelector('.language-console button') != null")
    page.run("document.querySelector('.language-console button').click()")
    assert page.wait_for("navigator.clipboard.readText()").startswith("hubline hub create")  # without its prompt

    page.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=2, mobile=True)
    for path in ("index.html", "reference/processor.html", "reference/api/hubline.html"):
        page.open(f"{address}/{path}")
        assert page.run("document.documentElement.scrollWidth") <= 390, path
    page.call("Emulation.clearDeviceMetricsOverride")

    page.open((site / "index.html").as_uri())  # from disk, without a server
    assert "dead letter" in search(page, "dead letters").lower()

    assert len(page.requests) > 10
    assert {each for each in page.requests if not each.startswith((address, "file:", "data:", "blob:"))} == set()
