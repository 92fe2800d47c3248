"""The house stays easy to find one's way in: small rooms, and one meaning per name."""

import ast
from collections import Counter
from pathlib import Path

import paceline

SOURCE = Path(paceline.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
MOST_LINES, MOST_FILES = 400, 17


def test_no_two_public_classes_have_one_name():
    names = Counter(
        node.name
        for file in FILES
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_files_and_folders_are_small():
    long = {file.name: len(file.read_text().splitlines()) for file in FILES}
    assert [name for name, lines in long.items() if lines > MOST_LINES] == []
    folders = Counter(file.parent for file in FILES)
    assert [folder.name for folder, files in folders.items() if files > MOST_FILES] == []


def test_every_module_says_what_it_is():
    silent = [
        file
        for file in FILES
        if file.read_text().strip() and ast.get_docstring(ast.parse(file.read_text())) is None
    ]
    assert silent == []
