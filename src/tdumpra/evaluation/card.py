"""The model card: what a model is, how it was made, what was measured, and what nobody has said yet.

A card is Markdown under the YAML header that model hubs read. Every figure comes from the model file; what it does not
hold is listed as open, and nothing is guessed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tdumpra import __version__
from tdumpra.core.gate import GateThresholds
from tdumpra.evaluation.card_items import CLAIM, TRIPOD_AI, Item
from tdumpra.evaluation.card_subject import Subject, answers, is_site
from tdumpra.evaluation.markdown import table, text
from tdumpra.evaluation.metrics_table import METRICS
from tdumpra.evaluation.story import gate_story
from tdumpra.method.decision import Decision

_WHO = {"student": "classifier alone", "logit_adjusted": "classifier ÷ prior", "similarity": "retrieval alone",
        "gate": "this model"}  # fmt: skip
_OPEN = "**open**"


def card(subject: Subject) -> str:
    """Return the whole card."""
    results = subject.results
    found = answers(subject)
    sections = {
        "Model": _model(subject),
        "Intended use": [_INTENDED],
        "Data": _data(subject),
        "How it was made and tested": _protocol(subject),
        "Results": _not_stored() if results is None else [*_of_an_ancestor(subject), *_results(results)],
        "Operating points": _not_stored() if results is None else _operating_points(results),
        "Subgroups": _subgroups(results, sites=False),
        "Sites": _subgroups(results, sites=True),
        "Limits": [_LIMITS],
        "Privacy": [_privacy(subject)],
        "History": _history(subject.lineage),
        "TRIPOD+AI": _items(TRIPOD_AI, found),
        "CLAIM": _items(CLAIM, found),
    }
    body = "\n\n".join(f"## {title}\n\n" + "\n\n".join(parts) for title, parts in sections.items())
    return f"{_header(subject)}\n# Model card: {text(subject.name)}\n\n{body}\n"


def _header(subject: Subject) -> str:
    """Return the YAML header of model hubs. Every value is written as JSON, which YAML includes."""
    lines = ["---", "library_name: tdumpra", "tags:"]
    lines += [f"- {tag}" for tag in ("tdumpra", "medical-imaging", "prototypes", "calibration")]
    if subject.networks:
        lines.append("pipeline_tag: image-classification")
    results = subject.results
    metrics = {} if results is None else results["metrics"].get("gate", {})
    if results is not None and metrics and len(subject.lineage) <= 1:  # the figures are of a model that was not changed
        source = str(results["data"].get("source") or results.get("name") or "unknown")
        lines += [
            "model-index:",
            f"- name: {_yaml(subject.name)}",
            "  results:",
            "  - task:",
            "      type: image-classification",
            "    dataset:",
            f"      name: {_yaml(source)}",
            f"      type: {_yaml(source.split(':')[0])}",
            "      split: test",
            "    metrics:",
        ]
        for key, each in metrics.items():
            if each["value"] is not None:
                word = METRICS[key].word if key in METRICS else key
                lines += [
                    f"    - type: {_yaml(key)}",
                    f"      value: {each['value']:.6g}",
                    f"      name: {_yaml(word)}",
                ]
    return "\n".join([*lines, "---"]) + "\n"


def _model(subject: Subject) -> list[str]:
    decision, bank = subject.decision, subject.decision.bank
    live = int(bank.mask.sum())
    shut = decision.thresholds == GateThresholds.shut()
    rows = {
        "task": f"{len(subject.class_names)} classes: {', '.join(map(text, subject.class_names))}",
        **({} if subject.networks else {"network": "none: it takes probabilities and embeddings of another model"}),
        **{role: text(words) for role, words in subject.networks.items()},
        "second path": f"{live} prototypes in {bank.width} dimensions, matched by cosine (κ = {decision.kappa:g}, "
        f"τ = {decision.tau:g})",
        "gate": "shut: tuning left it so, and the classifier decides alone" if shut else _gate_words(decision),
        "output": "a probability for each class, whether the gate opened, and the evidence for it",
        "made with": f"tdumpra {(subject.results or {}).get('version', __version__)}",
        "licence": f"{_OPEN}: the licence of the training data binds the weights",
    }
    return [table(("", ""), rows.items())]


def _gate_words(decision: Decision) -> str:
    t = decision.thresholds
    return (
        f"θ = {t.theta:g}, β = {t.beta:g}, margin = {t.margin:g}, δ = {t.delta:g}; {decision.rule} fusion with weight "
        f"{t.alpha:g} on the classifier"
    )


def _data(subject: Subject) -> list[str]:
    results, parts = subject.results, subject.parts
    said = []
    if results is not None:
        source = results["data"].get("source")
        said.append(
            f"Source: {text(source)}." if source else "The model was made from saved outputs; their data are unnamed."
        )
        rows = results.get("rows", {})
        if rows:
            said.append(f"Rows: {', '.join(f'{count:,} {part}' for part, count in rows.items())}.")
    if parts:
        groups = ", ".join(f"{each.rows:,} rows of {each.groups:,} groups in {part}" for part, each in parts.items())
        said.append(f"The model's own record holds {groups}.")
        head = ("class", *(f"{part} rows" for part in parts))
        lines = (
            (text(name), *(f"{each.by_class.get(name, 0):,}" for each in parts.values()))
            for name in subject.class_names
        )
        return [" ".join(said), table(head, lines)]
    if not said:
        return [f"{_OPEN}: the model file holds no record of its data."]
    return [" ".join(said)]


def _protocol(subject: Subject) -> list[str]:
    results = subject.results
    if results is None:
        return _not_stored()
    data = results["data"]
    said = []
    if data.get("protocol"):
        said.append(f"Split by the protocol `{data['protocol']}`, drawn with seed {data.get('split_seed', 0)}.")
    if data.get("hold_out"):
        said.append(f"The test holds every image of {text(data['hold_out'])}, which training never saw.")
    grouped = "one side of the split only" if results.get("grouped") else None
    said.append(
        f"All images of a group (lesion or patient) are on {grouped}."
        if grouped
        else "No groups were given: images of one lesion or patient may be on both sides of the split."
    )
    said.append("Everything was chosen on validation rows; test rows had no say in any choice.")
    seeds = results.get("seeds") or []
    if seeds:
        said.append(f"Seed of the training: {', '.join(map(str, seeds))}.")
    certified = results.get("certified")
    if certified is not None:
        said.append("The gate is certified." if certified else "A certificate was asked for and not granted.")
    tuning = f"Tuning: {text(results['tuning'])}." if results.get("tuning") else ""
    notes = [f"- {text(note)}" for note in results.get("notes") or []]
    return [part for part in (" ".join(said), tuning, "\n".join(notes)) if part]


def _results(results: Mapping[str, Any]) -> list[str]:
    metrics = results["metrics"]
    names = list(dict.fromkeys(key for of_one in metrics.values() for key in of_one))
    head = ("metric", *(_WHO.get(who, who) for who in metrics))
    lines = (
        (METRICS[key].heading if key in METRICS else key, *(_figure(of_one.get(key)) for of_one in metrics.values()))
        for key in names
    )
    parts = [_interval_words(results), table(head, lines)]
    if results["per_class"]:
        head = ("class", "test rows", "sensitivity", "precision", "F1", "AUROC")
        keys = ("recall", "precision", "f1", "auroc")
        rows = (
            (text(name), f"{each['support']:,}", *(_number(each.get(key)) for key in keys))
            for name, each in results["per_class"].items()
        )
        parts.append(table(head, rows))
    story = gate_story(results)
    parts.append(f"{story[0].upper()}{story[1:]}")
    noise = results.get("ece_if_calibrated")
    if noise:
        parts.append(
            f"A calibrated model would show an ECE of {_number(noise['mean'])} on so few rows by chance alone, and "
            f"seldom more than {_number(noise['upper'])}."
        )
    return parts


def _of_an_ancestor(subject: Subject) -> list[str]:
    """Warn where the model was changed after it was measured."""
    later = [str(entry["command"]) for entry in subject.lineage[1:]]
    if not later:
        return []
    return [
        f"**These figures are of the model before it was changed** (by {', '.join(later)}): the model as it is was "
        "not measured on these rows."
    ]


def _interval_words(results: Mapping[str, Any]) -> str:
    drawn = results.get("bootstrap")
    if not drawn or not drawn.get("replicates"):
        return "Figures on the test rows, without intervals: none were asked for."
    return (
        f"Figures on the test rows; in brackets {drawn['level']:.0%} intervals from {drawn['replicates']:,} bootstrap "
        f"replicates over {'groups' if results.get('grouped') else 'rows'}."
    )


def _operating_points(results: Mapping[str, Any]) -> list[str]:
    points = results["operating_points"]
    parts = []
    if points:
        levels = list(next(iter(points.values())))
        head = ("class", *(f"sensitivity at specificity {level}" for level in levels))
        lines = ((text(name), *(_point(each.get(level)) for level in levels)) for name, each in points.items())
        parts.append(table(head, lines))
    refer = results.get("refer")
    if refer and isinstance(refer.get("threshold"), float):
        parts.append(
            f"With cases below a top probability of {refer['threshold']:.3f} referred to a person, it answers "
            f"{refer['coverage']:.1%} of the test rows and errs on {_number(refer['risk'])} of those."
        )
    return parts or [f"{_OPEN}: the evaluation names no operating point."]


def _subgroups(results: Mapping[str, Any] | None, *, sites: bool) -> list[str]:
    if results is None:
        return _not_stored()
    tables = {key: each for key, each in results["subgroups"].items() if is_site(key) == sites}
    head = ("", "test rows", "accuracy", "bal. acc.", "AUROC", "ECE ↓")
    keys = ("accuracy", "balanced_accuracy", "macro_auroc", "ece")
    parts = []
    if sites and results["data"].get("hold_out"):
        parts.append(f"Every figure above is of {text(results['data']['hold_out'])}, which training never saw.")
    for column, values in tables.items():
        rows = (
            (text(value), f"{each['n']:,}", *(_number(each.get(key)) for key in keys)) for value, each in values.items()
        )
        parts += [f"By {text(column)}:", table(head, rows)]
    what = "no site was measured by itself" if sites else "no subgroups were measured"
    return parts or [f"{_OPEN}: {what} (`evaluate.subgroups` names columns of the data)."]


def _privacy(subject: Subject) -> str:
    pictures = (
        f"The file holds {subject.thumbnails:,} small pictures of training images (`bank.thumbnails = false` leaves "
        "them out)."
        if subject.thumbnails
        else "The file holds no picture of a training image."
    )
    record = (
        " Its record holds ids, groups, labels, posteriors and embeddings of the training and validation rows."
        if subject.parts
        else ""
    )
    return f"{pictures}{record} Ids and groups of exemplars are shown as evidence: use ids that name nobody."


def _history(lineage: Sequence[Mapping[str, Any]]) -> list[str]:
    if not lineage:
        return [f"{_OPEN}: the file carries no history."]
    rows = (tuple(text(each.get(name, "")) for name in ("time", "command", "version")) for each in lineage)
    return [table(("time", "command", "version"), rows)]


def _items(items: Sequence[Item], found: Mapping[str, str | None]) -> list[str]:
    filled = [(item, None if item.answer is None else found.get(item.answer)) for item in items]
    n_open = sum(answer is None for _, answer in filled)
    lines = ((item.number, item.asks, _OPEN if answer is None else text(answer)) for item, answer in filled)
    head = f"{len(items) - n_open} of {len(items)} items are answered from the model file, {n_open} are open."
    return [f"{head} Items are in our own words.", table(("item", "asks for", "answer"), lines)]


def _not_stored() -> list[str]:
    return [f"{_OPEN}: the model file holds no evaluation. Models made by `run` and `attach` of this version do."]


def _figure(each: Mapping[str, Any] | None) -> str:
    if each is None or each["value"] is None:
        return "undefined"
    interval = each.get("interval")
    return _number(each["value"]) + (f" [{_number(interval[0])}, {_number(interval[1])}]" if interval else "")


def _point(each: Mapping[str, Any] | None) -> str:
    return "undefined" if each is None else _figure({"value": each["sensitivity"], "interval": each.get("interval")})


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3f}"


def _yaml(value: str) -> str:
    return json.dumps(value)


_INTENDED = """\
Research on fine-grained classification, calibration, retrieval and evidence.

**Not intended:** diagnosis, triage, screening, or any decision about a person. It is **not a medical device**, has been
assessed by no authority, and must not be used as one. Whoever knows of a narrower purpose, and of people or cameras
that it is not for, writes them here."""

_LIMITS = """\
- **Closed world.** It knows the classes above. An image of anything else is given one of them, perhaps with confidence;
  *familiarity* is a hint, not a detector.
- **Other places.** Figures hold for images like those of the test. `tdumpra validate` measures another place.
- **Shortcuts.** Rulers, hair, ink and vignettes come with some diagnoses more than with others. Look at the exemplars.
- **Evidence is not explanation.** Similar prototypes show what the network finds similar.
- **The gate breaks predictions too.** How many, the results say."""
