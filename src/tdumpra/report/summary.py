"""An evaluation in plain words: the headline, the figures behind it, and what to be careful about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from tdumpra.evaluation.metrics_table import METRICS
from tdumpra.evaluation.story import moved
from tdumpra.report.kit import sentence, signed

_FROM_VALIDATION = "expected from validation:"
LEVEL = 0.05  # below it a difference is called more than chance
Verdict = Literal["better", "worse", "chance", "shut", "idle"]
Tone = Literal["", "unproven", "good", "bad"]

VERDICTS: dict[Verdict, str] = {
    "shut": "never opened", "idle": "fixed and broke nothing", "chance": "not better than chance",
    "better": "better than chance", "worse": "worse than no gate",
}  # fmt: skip
_OPENED = "The gate opened on {opened:,} of {cases} and {moved}; that is "
_SENTENCES = {
    "shut": "The gate stayed shut on all {cases}: every prediction is the classifier’s own.",
    "idle": "The gate opened on {opened:,} of {cases} and {moved}: no prediction is better or worse for it.",
    **{kind: f"{_OPENED}{VERDICTS[kind]}." for kind in ("chance", "better", "worse")},
    "certified": "This gate is certified: it was proven on lesions that took no part in choosing it.",
    "not granted": "This gate is not certified: a proof was tried and did not succeed.",
    "not asked": "This gate is not certified: no certificate was asked for.",
    "certificate": "The certificate: {sentence}. It promises: {guarantee}.",
    "estimate": "What validation promised: {sentence}.",
    "tests": "Fixed against broken, for the gates in use: {tests}. With 95 % confidence the gate breaks fewer than "
    "{harm:.1%} of cases.",
    "unsure": "On the {n:,} cases of which the classifier is less than {below:.0%} sure, accuracy went from "
    "{before:.4f} to {after:.4f}.",
    "headroom": "An oracle that always followed the right path would reach an accuracy of {oracle:.4f}: {room:.1f} "
    "points of headroom, of which the gate took {taken}.",
    "worth": "Against what needs no bank: {worth}",
    "seeds_won": "Against what needs no bank, over {seeds} seeds: retrieval won in {won}, lost in {lost}, and neither "
    "won in {tied}.",
    "parted_ways": "Accuracy and balanced accuracy went different ways: on the whole rare classes {rare}, common ones "
    "{common}.",
    "tuning": "How it was tuned: {tuning}",
    "note": "{note}",
    "ungrouped": "No groups were given: images of one lesion or patient may be on both sides of the split, and every "
    "figure here may be too good.",
    "leak": "{images:,} of {of:,} test images ({share:.1%}) share a group with training or validation: every figure "
    "here is too good.",
}


class Said(NamedTuple):
    """A sentence of the summary: its kind, and the values in it; ``str`` gives the words."""

    kind: str
    values: Mapping[str, Any]

    def __str__(self) -> str:
        """Return the finished sentence."""
        return sentence(_SENTENCES[self.kind].format(**self.values))


class Tile(NamedTuple):
    """A figure that stands out, what it is, its interval, for a change whether it is proven, and what was expected."""

    value: str
    words: str
    interval: str = ""
    tone: Tone = ""
    expected: str = ""


class Summary(NamedTuple):
    """The top of a report."""

    headline: Said
    verdict: Verdict
    standing: Said | None  # whether the gate is certified, where the evaluation says
    tiles: list[Tile]
    sentences: list[Said]
    cautions: list[Said]


def summarise(
    evaluation: Mapping[str, Any], leak: Mapping[str, Any] | None = None, gates: Sequence[Mapping[str, Any]] = ()
) -> Summary:
    """Return the top of a report, from one seed's evaluation or from several seeds together.

    ``gates`` are the contents of ``gate.json``, one for each tuning behind the evaluation.
    """
    gate, scores, expected = evaluation["gate"], evaluation["comparators"], Expected.of(gates)
    tiles = [
        Tile(f"{gate['opened'] / gate['n']:.1%}", f"of cases opened the gate ({gate['opened']:,} of {gate['n']:,})",
             expected=expected.share("opened")),
        Tile(f"{gate['fixed']:,} : {gate['broken']:,}", "predictions fixed : broken", expected=expected.counts()),
        _change(evaluation, "accuracy", "accuracy")._replace(expected=expected.gain("accuracy")),
        _change(evaluation, "balanced_accuracy", "balanced accuracy")._replace(
            expected=expected.gain("balanced_accuracy")
        ),
        _change(evaluation, "ece", "calibration error"),
    ]  # fmt: skip
    alone, after = (scores.get(name, {}).get("ece") for name in ("temperature", "gate"))
    if alone is not None and after is not None:  # the gate uses a fitted temperature, which deserves its share
        ece = tiles[-1]
        tone: Tone = "unproven" if ece.tone == "good" and alone <= after else ece.tone
        tiles[-1] = ece._replace(words=f"{ece.words}; a temperature alone: {alone:.4f}", tone=tone)
    return Summary(
        Said(judged(evaluation), _counts(evaluation)), judged(evaluation), _standing(evaluation), tiles,
        list(_sentences(evaluation, gates)), list(_cautions(evaluation, leak)),
    )  # fmt: skip


class Expected(NamedTuple):
    """What the gates in use promised on validation rows that had no say in the choice; of several, all together."""

    estimates: list[Mapping[str, Any]]

    @classmethod
    def of(cls, gates: Sequence[Mapping[str, Any]]) -> Expected:
        """Take the estimates; one that several seeds share counts once."""
        found: list[Mapping[str, Any]] = []
        for gate in gates:
            estimate = gate.get("expected")
            if estimate and estimate not in found:
                found.append(estimate)
        return cls(found)

    def share(self, count: str) -> str:
        """Return a count as a share of the rows."""
        rows = sum(each["rows"] for each in self.estimates)
        return f"{_FROM_VALIDATION} {sum(each[count] for each in self.estimates) / rows:.1%}" if rows else ""

    def counts(self) -> str:
        """Return fixed against broken predictions."""
        fixed, broken, rows = (sum(each[key] for each in self.estimates) for key in ("fixed", "broken", "rows"))
        return f"{_FROM_VALIDATION} {fixed:,} : {broken:,} of {rows:,}" if rows else ""

    def gain(self, metric: str) -> str:
        """Return the mean gain in a metric that was estimated: accuracy, and the objective."""
        if metric == "accuracy":
            gains = [each["accuracy"] - each["base_accuracy"] for each in self.estimates]
        else:
            gains = [
                each["objective"] - each["base_objective"] for each in self.estimates if each["maximised"] == metric
            ]
        return f"{_FROM_VALIDATION} {signed(sum(gains) / len(gains))}" if gains else ""


def headline(evaluation: Mapping[str, Any]) -> str:
    """Say in a sentence what the gate did."""
    return str(Said(judged(evaluation), _counts(evaluation)))


def judged(evaluation: Mapping[str, Any]) -> Verdict:
    """Judge what the gate did; over several seeds the interval over lesions and seeds must agree with the test."""
    found = verdict(evaluation["gate"])
    low, high = evaluation.get("paired", {}).get("student", {}).get("accuracy", {}).get("interval", (None, None))
    known = evaluation.get("resampled") == "lesions and seeds" and low is not None and low == low
    return "chance" if found in ("better", "worse") and known and low <= 0 <= high else found


def verdict(gate: Mapping[str, Any]) -> Verdict:
    """Judge the fixed and broken predictions together: by the test over lesions if there is one, else by row."""
    if not gate["opened"]:
        return "shut"
    if not gate["fixed"] and not gate["broken"]:
        return "idle"
    flip = gate.get("sign_flip_p")
    p = flip if flip is not None else gate["mcnemar_p"]
    if p is None or p >= LEVEL or gate["fixed"] == gate["broken"]:
        return "chance"
    return "better" if gate["fixed"] > gate["broken"] else "worse"


def p_text(p: float) -> str:
    """Format a p-value; a very small one is a bound."""
    return f"p = {p:.2g}" if p >= 0.001 else "p < 0.001"


def _counts(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    gate, seeds = evaluation["gate"], len(evaluation.get("seeds", ()))
    cases = f"{gate['n']:,} cases" if seeds < 2 else f"{gate['n']:,} cases of {seeds} seeds"
    return {"cases": cases, "opened": gate["opened"], "moved": moved(gate)}


def _change(evaluation: Mapping[str, Any], metric: str, words: str) -> Tile:
    """Show how the gate changed a metric; coloured only where the change is more than chance.

    The interval of the change decides. Without one, the verdict decides on accuracy, which is what its test is of,
    and nothing is proven about any other metric; the tile then shows the interval of the gate's own value.
    """
    before, after = (evaluation["comparators"][name][metric] for name in ("student", "gate"))
    if before is None or after is None:
        return Tile("undefined", words)
    sign = -1 if METRICS[metric].lower_is_better else 1
    low, high = evaluation.get("paired", {}).get("student", {}).get(metric, {}).get("interval", (None, None))
    level = evaluation.get("bootstrap", {}).get("level", 0.95)
    tone: Tone = "unproven"
    interval = ""
    if low is not None and low == low:
        tone = "good" if low > 0 else "bad" if high < 0 else "unproven"
        low, high = sorted((sign * low, sign * high))
        interval = f"{level:.0%} interval {signed(low)} to {signed(high)}"
    else:
        if metric == "accuracy" and (found := judged(evaluation)) in ("better", "worse"):
            tone = "good" if found == "better" else "bad"
        low, high = evaluation.get("intervals", {}).get("gate", {}).get(metric, (None, None))
        if low is not None:
            interval = f"{level:.0%} interval of the latter: {low:.3f} to {high:.3f}"
    return Tile(signed(after - before), f"{words}: {before:.4f} → {after:.4f}", interval, tone)


def _standing(evaluation: Mapping[str, Any]) -> Said | None:
    """Say whether the gate in use is certified."""
    if "certified" not in evaluation:
        return None
    return Said({True: "certified", False: "not granted", None: "not asked"}[evaluation["certified"]], {})


def _sentences(evaluation: Mapping[str, Any], gates: Sequence[Mapping[str, Any]]) -> Iterator[Said]:
    gate, part = evaluation["gate"], evaluation.get("ambiguous")
    if gate["opened"]:
        tests = {"sign_flip_p": "sign-flip test over lesions", "mcnemar_p": "exact McNemar test"}
        said = [f"{words} {p_text(gate[key])}" for key, words in tests.items() if gate.get(key) is not None]
        yield Said("tests", {"tests": ", ".join(said), "harm": gate["harm_upper"]})
    if part is not None and part["n"]:
        before, after = (part["comparators"][name]["accuracy"] for name in ("student", "gate"))
        yield Said("unsure", {"n": part["n"], "below": part["below"], "before": before, "after": after})
    if gate.get("headroom") is not None and gate["headroom"] > 0:
        taken = signed(100 * (gate["accuracy"] - gate["classifier_accuracy"]), 1)
        yield Said("headroom", {"oracle": gate["oracle_accuracy"], "room": 100 * gate["headroom"], "taken": taken})
    if "retrieval_worth" in evaluation:
        yield Said("worth", {"worth": evaluation["retrieval_worth"]["sentence"]})
    by_seed = evaluation.get("by_seed", {}).values()
    winners = Counter(each["retrieval_worth"]["winner"] for each in by_seed if "retrieval_worth" in each)
    if winners:
        won, lost, tied = (winners[name] for name in ("retrieval", "no retrieval", "neither"))
        yield Said("seeds_won", {"seeds": winners.total(), "won": won, "lost": lost, "tied": tied})
    student, ours = (evaluation["comparators"][name] for name in ("student", "gate"))
    metrics = ("accuracy", "balanced_accuracy")
    changes = [0.0 if None in (student[m], ours[m]) else ours[m] - student[m] for m in metrics]
    if min(changes) <= -5e-5 and max(changes) >= 5e-5:
        rare, common = ("gained", "lost") if changes[1] > 0 else ("lost", "gained")
        yield Said("parted_ways", {"rare": rare, "common": common})
    if "by_seed" not in evaluation:  # several seeds have as many sentences, in a place of their own
        yield from _chosen(evaluation["tuning"], gates)


def _chosen(tuning: str, gates: Sequence[Mapping[str, Any]]) -> Iterator[Said]:
    """Tell how the gate was chosen, what was proven, and what was estimated, each in a sentence of its own."""
    proofs = [gate["certificate"] for gate in gates if gate.get("certificate")]
    estimates = [gate["out_of_fold"] for gate in gates if gate.get("out_of_fold")]
    for said in (*proofs, *estimates):
        tuning = tuning.removeprefix(said["sentence"]).replace(f"; {said['sentence']}", "")
    if tuning := tuning.removeprefix("; "):
        yield Said("tuning", {"tuning": tuning})
    yield from (Said("certificate", {"sentence": each["sentence"], "guarantee": each["guarantee"]}) for each in proofs)
    yield from (Said("estimate", {"sentence": each["sentence"]}) for each in Expected.of(gates).estimates)


def _cautions(evaluation: Mapping[str, Any], leak: Mapping[str, Any] | None) -> Iterator[Said]:
    yield from (Said("note", {"note": note}) for note in evaluation.get("notes", ()))
    if not evaluation["grouped"]:
        yield Said("ungrouped", {})
    if leak is not None and leak["images"]:
        yield Said("leak", {key: leak[key] for key in ("images", "of", "share")})
