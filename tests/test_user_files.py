import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hubline.errors import ConfigError
from hubline.user_files import import_file


@pytest.fixture(autouse=True)
def restored_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", sys.path.copy())
    before = set(sys.modules)
    yield
    for name in sys.modules.keys() - before:
        del sys.modules[name]


class TestImportFile:
    def test_what_lies_beside_the_file_can_be_imported(self, tmp_path: Path) -> None:
        (tmp_path / "beside_the_app.py").write_text("limit = 3")
        (tmp_path / "my-app.py").write_text("from beside_the_app import limit")

        module = import_file(tmp_path / "my-app.py", prefix="hubline_test_")

        assert module.limit == 3
        assert sys.modules["hubline_test_my_app"] is module

    def test_it_does_not_hide_a_package_of_its_name(self, tmp_path: Path) -> None:
        (tmp_path / "json.py").write_text("import json as own")

        import_file(tmp_path / "json.py", prefix="hubline_test_")

        assert sys.modules["json"].__file__ != str(tmp_path / "json.py")

    def test_a_file_that_raises_leaves_no_module(self, tmp_path: Path) -> None:
        (tmp_path / "broken.py").write_text("1 / 0")

        with pytest.raises(ZeroDivisionError):
            import_file(tmp_path / "broken.py", prefix="hubline_test_")

        assert "hubline_test_broken" not in sys.modules

    def test_a_file_that_is_not_named_as_python_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("limit = 3")

        with pytest.raises(ConfigError, match=r"'notes\.txt' must end in \.py"):
            import_file(tmp_path / "notes.txt", prefix="hubline_test_")
