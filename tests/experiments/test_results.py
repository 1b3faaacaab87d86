from __future__ import annotations

import csv
import io
import json
from typing import ClassVar

from tdumpra.evaluation.over_seeds import Figure
from tdumpra.experiments.results import ResultTable, Value, undefined_notes, with_means

TABLE = ResultTable(
    title="50 % of R&D_1",
    columns={"name": "Name", "accuracy": "Acc ↑", "note": "Note"},
    rows=[
        {"name": "a|b", "accuracy": Figure(0.81234, 0.0123), "note": 3},
        {"name": "c", "accuracy": Figure(None), "note": None},
    ],
    notes=["A note."],
)


class TestForms:
    def test_csv(self):
        rows = list(csv.DictReader(io.StringIO(TABLE.to_csv())))
        assert rows[0] == {"name": "a|b", "accuracy": "0.81234", "accuracy_std": "0.0123", "note": "3"}
        assert rows[1] == {"name": "c", "accuracy": "", "accuracy_std": "", "note": ""}

    def test_markdown(self):
        lines = TABLE.to_markdown().splitlines()
        assert lines[2] == "| Name | Acc ↑ | Note |"
        assert lines[4] == "| a\\|b | 0.8123 ± 0.0123 | 3 |"
        assert lines[5] == "| c | undefined |  |"
        assert lines[-1] == "- A note."

    def test_latex(self):
        text = TABLE.to_latex()
        assert r"\caption{50 \% of R\&D\_1}" in text
        assert r"a|b & 0.8123 $\pm$ 0.0123 & 3 \\" in text
        assert text.count(r"\begin{table}") == text.count(r"\end{table}") == 1

    def test_files(self, tmp_path):
        paths = TABLE.write(tmp_path, "results")
        assert [path.name for path in paths] == ["results.csv", "results.json", "results.md", "results.tex"]
        content = json.loads((tmp_path / "results.json").read_text())
        assert content["rows"][0]["accuracy"] == {"mean": 0.81234, "std": 0.0123}
        assert content["rows"][1]["accuracy"] == {"mean": None, "std": None}

    def test_files_that_are_there_are_known(self, tmp_path):
        assert not TABLE.is_written(tmp_path, "results")
        TABLE.write(tmp_path, "results")
        assert TABLE.is_written(tmp_path, "results")
        (tmp_path / "results.tex").write_text("altered")
        assert not TABLE.is_written(tmp_path, "results")


def test_what_is_undefined_is_told_in_words_once_for_each_reason():
    undefined = [
        {"where": f"per_class.{who}.keratosis.precision", "reason": "never predicted"} for who in ("student", "gate")
    ] + [{"where": "gate.headroom_taken", "reason": "there is no headroom"}]
    assert undefined_notes(undefined) == [
        "Undefined: precision of keratosis for student, and 1 more (never predicted).",
        "Undefined: headroom taken of the gate (there is no headroom).",
    ]


class TestMeans:
    ROWS: ClassVar[list[dict[str, Value]]] = [
        {"run": run, "seed": seed, "value": value, "split": "test", "accuracy": accuracy, "opened": opened}
        for run, seed, value, accuracy, opened in (
            ("a", 0, 0.5, 0.6, 2), ("a", 0, 0.7, 0.7, 3), ("a", 1, 0.5, 0.8, 4), ("a", 1, 0.7, 0.7, 4),
            ("b", 0, 0.5, 0.1, 1),
        )
    ]  # fmt: skip

    def test_the_means_of_a_models_seeds_stand_below_them(self):
        found = with_means(self.ROWS, own=("value",))
        assert [(row["run"], row["seed"], row["value"]) for row in found] == [
            ("a", 0, 0.5), ("a", 0, 0.7), ("a", 1, 0.5), ("a", 1, 0.7), ("a", "mean", 0.5), ("a", "mean", 0.7),
            ("b", 0, 0.5),
        ]  # fmt: skip
        first, second = found[4:6]
        assert (str(first["accuracy"]), str(second["accuracy"])) == ("0.7000 ± 0.1414", "0.7000 ± 0.0000")
        assert (first["opened"], first["split"]) == (Figure(3.0, 2**0.5), "test")

    def test_what_each_seed_has_of_its_own_has_no_mean(self):
        rows: list[dict[str, Value]] = [{"run": "a", "seed": seed, "best": seed, "accuracy": 0.5} for seed in (1, 2)]
        assert with_means(rows, own=("best",))[-1]["best"] is None

    def test_undefined_for_one_is_undefined_for_the_mean(self):
        rows: list[dict[str, Value]] = [
            {"run": "a", "seed": seed, "accuracy": value} for seed, value in ((0, 0.5), (1, "undefined"))
        ]
        assert str(with_means(rows)[-1]["accuracy"]) == "undefined"
