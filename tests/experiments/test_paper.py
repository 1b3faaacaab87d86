"""The paper's figures, against its own source where that lies beside the clone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tdumpra.evaluation.over_seeds import Figure
from tdumpra.experiments import paper

SOURCE = Path(__file__).parents[3] / "shared" / "paper.tex"
CAPTIONS = {"ham10000": "across backbones on HAM10000", "isic2019": "across backbones on ISIC2019"}

with_source = pytest.mark.skipif(not SOURCE.is_file(), reason="needs the paper's LaTeX source in ../shared")


def test_a_row_is_quoted_as_printed():
    row = paper.reported("isic2019", "ViT-B", with_method=True)
    assert {metric: str(figure) for metric, figure in row.items()} == {
        "accuracy": "0.6415 ± 0.0031",
        "macro_f1": "0.4526 ± 0.0040",
        "balanced_accuracy": "0.4261 ± 0.0036",
        "ece": "0.2639 ± 0.0037",
        "macro_auroc": "0.8604 ± 0.0018",
    }
    assert paper.reported_delta("isic2019", "ViT-B") == "+1.72%"  # its rounded means would give 1.71
    assert [str(figure) for figure in paper.ABLATION[5]] == ["0.9020", "0.8259", "0.8088", "0.0615"]


def test_a_backbone_that_the_paper_lacks():
    assert paper.reported("ham10000", "lite0", with_method=True) == {}
    assert paper.reported_delta("ham10000", "lite0") is None


def tabular(caption: str) -> list[list[str]]:
    """The cells of the rows of a table of the paper, without LaTeX."""
    text = SOURCE.read_text(encoding="utf-8")
    body = text[text.index(caption) :].split(r"\midrule", 1)[1].split(r"\bottomrule")[0]
    marks = re.compile(r"\\rowcolor\{[^}]*\}|\\textcolor\{red\}|\\textbf|\\midrule|\\hline|[{}$\s]")
    rows = (marks.sub("", row.replace(r"\pm", "±").replace(r"\%", "%")) for row in body.split(r"\\"))
    return [row.split("&") for row in rows if "&" in row]


def text_of(figure: Figure) -> str:
    return str(figure).replace(" ", "")


@with_source
@pytest.mark.parametrize("dataset", paper.DATASETS)
def test_tables_1_and_2(dataset):
    printed = tabular(CAPTIONS[dataset])
    assert len(printed) == 2 * len(paper.BACKBONES)
    for i, backbone in enumerate(paper.BACKBONES):
        without, with_method = printed[2 * i : 2 * i + 2]
        family = backbone.name.split("-")[0].lower()
        assert without[0].lower().startswith(family)
        for cells, used in ((without, False), (with_method, True)):
            row = paper.reported(dataset, backbone.name, with_method=used)
            assert [text_of(row[metric]) for metric in paper.TABLE_METRICS] == cells[1:6]
        assert paper.reported_delta(dataset, backbone.name) == with_method[6]


@with_source
def test_table_3():
    printed = tabular("Ablation studies")
    assert [[text_of(figure) for figure in row] for row in paper.ABLATION] == [row[2:] for row in printed]
