"""The files of the dashboard, without a browser: what they must not contain, and what they are made of."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import headrace

UI = Path(headrace.__file__).parent / "rest" / "ui"
OURS = sorted(path for path in UI.rglob("*.js") if path.parent.name != "vendor")
# Each of these turns text into markup or code, or an element into a frame for one.
MAKES_MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|dangerouslySetInnerHTML|document\.write|createContextualFragment|DOMParser|"
    r"setHTMLUnsafe|parseHTMLUnsafe|srcdoc|\beval\b|new Function|setAttribute\(|javascript:|\.html\("
)


def name_of(path: Path) -> str:
    return str(path.relative_to(UI))


def test_there_is_something_to_look_at():
    assert len(OURS) > 15


def test_no_module_makes_markup_of_text():
    found = {name_of(path): MAKES_MARKUP.findall(path.read_text(encoding="utf-8")) for path in OURS}
    assert {name: words for name, words in found.items() if words} == {}


def test_the_page_has_no_inline_script_or_style():
    html = (UI / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\bsrc=)", html) == []


def test_attributes_are_never_spread_from_documents():
    """`...${document}` would let a document of REST name attributes, handlers among them."""
    assert [name_of(path) for path in OURS if re.search(r"<[^>`]*\.\.\.\$\{", path.read_text(encoding="utf-8"))] == []


def test_nothing_is_loaded_from_elsewhere():
    texts = {
        path: path.read_text(encoding="utf-8") for path in UI.rglob("*") if path.suffix in {".js", ".css", ".html"}
    }
    allowed = {
        "http://www.w3.org/1999/xhtml",
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1998/Math/MathML",
    }  # namespaces
    found = {
        name_of(path): set(re.findall(r"https?://[\w.-]+[\w./-]*|[\"'(]//\w[\w./-]*", text)) - allowed
        for path, text in texts.items()
    }
    assert {name: addresses for name, addresses in found.items() if addresses} == {}


def imports(path: Path) -> list[str]:
    return re.findall(
        r'^(?:import|export)\s?\{?[^"`;]*from\s?"([^"]+)";', path.read_text(encoding="utf-8"), re.MULTILINE
    )


def test_imports_are_found_and_go_one_way():
    graph = {
        path.resolve(): [(path.parent / name).resolve() for name in imports(path)]
        for path in [*OURS, *UI.glob("vendor/*.js")]
    }
    assert [str(target) for targets in graph.values() for target in targets if target not in graph] == []

    def reaches(start: Path) -> set[Path]:
        seen: set[Path] = set()
        waiting = list(graph[start])
        while waiting:
            one = waiting.pop()
            if one not in seen:
                seen.add(one)
                waiting += graph[one]
        return seen

    assert [name_of(path) for path in graph if path in reaches(path)] == []
    # Only one module knows the libraries, and every module is used.
    assert [
        name_of(path)
        for path, targets in graph.items()
        if any("vendor" in one.parts for one in targets) and "vendor" not in path.parts
    ] == ["html.js"]
    unused = (
        set(graph) - reaches((UI / "main.js").resolve()) - {(UI / "main.js").resolve(), (UI / "theme.js").resolve()}
    )
    assert unused == set()


def test_every_module_is_loaded_at_once():
    """Else a browser finds the modules one import after the other, a round trip for each."""
    loaded = re.findall(r'<link rel="modulepreload" href="([^"]+)">', (UI / "index.html").read_text(encoding="utf-8"))
    modules = {name_of(path) for path in UI.rglob("*.js")} - {"main.js", "theme.js"}
    assert sorted(modules) == loaded


def test_libraries_are_those_that_the_table_names():
    rows = re.findall(
        r"^\| (\S+) \| (\S+ \S+) \| (\S+) \| ([0-9a-f]{64}) \|$",
        (UI / "vendor" / "README.md").read_text(),
        re.MULTILINE,
    )
    files = {path.name for path in (UI / "vendor").iterdir()} - {"README.md"}
    assert {name for name, *_ in rows} == files
    assert [
        name
        for name, _, _, checksum in rows
        if hashlib.sha256((UI / "vendor" / name).read_bytes()).hexdigest() != checksum
    ] == []


def test_the_dashboard_stays_small():
    size = sum(path.stat().st_size for path in UI.rglob("*") if path.suffix in {".js", ".css", ".html", ".svg"})
    assert size < 200_000, size
