"""A module of the project as it is without one text of its file. It is compiled in memory; no file changes."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType

ROOT = Path(__file__).parents[2]


class Without:
    """Finds the module of ``file`` where it is looked for, with ``instead`` in the place of ``text``. To be put into
    ``sys.meta_path``."""

    def __init__(self, file: str, text: str, instead: str) -> None:
        self._file, self._text, self._instead = file, text, instead

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        if name != self._file.removesuffix(".py").replace("/", "."):
            return None
        path = str(ROOT / self._file)
        return importlib.util.spec_from_file_location(name, path, loader=_Loader(name, path, self._text, self._instead))


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, text: str, instead: str) -> None:
        super().__init__(name, path)
        self._text, self._instead = text, instead

    def get_code(self, _fullname: str) -> CodeType:
        return compile(Path(self.path).read_text().replace(self._text, self._instead), self.path, "exec")
