from __future__ import annotations

import csv
import io
import json
import math

import pytest
from rich.console import Console

from tdumpra import screen


def test_control_characters_do_not_reach_the_terminal():
    assert screen.printable("a\x1b[31mb\u202e\tc") == "a\\x1b[31mb\\u202e\\tc"
    assert screen.printable("Müller's θ [x]") == "Müller's θ [x]"
    assert screen.printable("caf\udce9") == "caf\ufffd"  # a byte that is no UTF-8
    console = Console(file=io.StringIO(), width=40)
    screen.say("[bold]x[/] \x1b[31m 42", console)
    screen.show_notes(["[bold]y[/] \x07"], console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "[bold]x[/] \\x1b[31m 42" in shown
    assert "note: [bold]y[/] \\x07" in shown


def test_a_name_that_no_file_system_has():
    assert screen.printable("a\ud800b\u2028c") == "a\ufffdb\\u2028c"


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("=HYPERLINK(1)", "'=HYPERLINK(1)"), ("+1+1", "'+1+1"), ("-1+cmd", "'-1+cmd"), ("@SUM(A1)", "'@SUM(A1)"),
        ("'=1", "''=1"), ("-", "'-"), ("-0.5", "-0.5"), ("+1e-3", "+1e-3"), ("plain", "plain"), ("it's", "it's"),
        ("'tis", "'tis"), ("a=b", "a=b"), ("", ""),
    ],
)  # fmt: skip
def test_a_spreadsheet_finds_no_formula(name, cell):
    ((found,),) = csv.reader(io.StringIO(screen.csv_text([[name]])))
    assert found == cell
    assert screen.csv_name(found) == name


def test_a_cell_neither_begins_nor_ends_a_line_of_its_own():
    text = screen.csv_text([["\t=1", "\r=1", "a\x1b]0;b\x07", -0.25, None, 3]])
    assert text == "\\t=1,\\r=1,a\\x1b]0;b\\x07,-0.25,,3\n"


def test_json_says_everything_that_a_document_holds(capsys):
    screen.print_json({"p": math.nan, "name": "θ", "path": "caf\udce9", "rows": (1, 2)})
    found = json.loads(capsys.readouterr().out)
    assert found == {"p": None, "name": "θ", "path": "caf\udce9", "rows": [1, 2]}


def test_json_holds_no_control_characters_and_says_the_same(capsys):
    name = "a\x7f\x9b31m\u202eθ\U000e0001\x1b\ud800"
    screen.print_json({"name": name})
    shown = capsys.readouterr().out
    assert not set(shown) & {"\x7f", "\x9b", "\u202e", "\U000e0001", "\x1b"}
    assert "θ" in shown
    assert json.loads(shown) == {"name": name}


@pytest.mark.parametrize("documents", [[], [{}], [{"a": [1, float("nan")], "b": "x\ny\u2028z"}, 3, {"θ": {"c": []}}]])
def test_a_list_comes_element_by_element_as_it_would_at_once(documents, capsys):
    screen.print_json(documents)
    at_once = capsys.readouterr().out
    screen.print_json_list(iter(documents))
    assert capsys.readouterr().out == at_once


def test_what_is_known_of_a_list_is_printed_before_the_rest_is(capsys):
    def documents():
        yield {"a": 1}
        assert '"a": 1' in capsys.readouterr().out
        yield {"a": 2}

    screen.print_json_list(documents())
    assert '"a": 2' in capsys.readouterr().out


@pytest.mark.parametrize(("terminal", "show", "seen"), [(True, True, True), (True, False, False), (False, True, False)])
def test_a_bar_where_there_is_a_terminal(terminal, show, seen):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100, force_interactive=terminal)
    with screen.progress("counting [x]", 3, console=console, show=show) as step:
        step()
        step(by=2)
        step(3, 4, "done \x07")
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert ("done \\x07" in shown) == seen
    assert ("3/4" in shown) == seen
