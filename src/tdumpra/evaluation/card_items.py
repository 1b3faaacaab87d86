"""What two reporting guidelines ask of a study of a prediction model, in our own short words.

TRIPOD+AI (Collins and others, BMJ 2024;385:e078378) is on prediction models in general, CLAIM (Tejani and others,
Radiology: Artificial Intelligence 2024;6:e240300) on artificial intelligence in medical imaging. Each item names the
answer of :func:`tdumpra.evaluation.card.answers` that fills it. One without an answer is for the authors: a model file
cannot know of ethics, funding, or how a diagnosis was made.
"""

from __future__ import annotations

from typing import NamedTuple


class Item(NamedTuple):
    """One item of a guideline."""

    number: str
    asks: str
    answer: str | None = None  # None: nothing in a model file can answer it


TRIPOD_AI = (
    Item("1", "A title that names model, population and outcome"),
    Item("2", "An abstract"),
    Item("3a", "Context in health care, and earlier models"),
    Item("3b", "Target population, purpose and users"),
    Item("3c", "Known inequalities in health between groups"),
    Item("4", "Objectives: development, evaluation or both", "objective"),
    Item("5a", "Sources of the data, and whom they represent", "source"),
    Item("5b", "Dates of the data"),
    Item("6a", "Setting, number and place of centres", "sites"),
    Item("6b", "Who was eligible"),
    Item("6c", "Treatments, where they matter"),
    Item("7", "How data were prepared and checked", "preprocessing"),
    Item("8a", "The outcome, and how it was assessed", "outcome"),
    Item("8b", "Who assessed it"),
    Item("8c", "Whether they were blind to the predictors"),
    Item("9a", "Why these predictors", "predictors"),
    Item("9b", "How and when predictors were measured"),
    Item("9c", "Who measured them, where that is a judgement"),
    Item("10", "How the number of cases came about"),
    Item("11", "Missing data"),
    Item("12a", "Which data served which purpose", "split"),
    Item("12b", "How predictors entered the model", "preprocessing"),
    Item("12c", "Type of model, how it was built and validated inside", "model"),
    Item("12d", "Differences between places, and how they were handled"),
    Item("12e", "Measures of performance", "metrics"),
    Item("12f", "Updating of the model, such as recalibration", "updating"),
    Item("12g", "How predictions were computed for evaluation", "output"),
    Item("13", "Imbalance of classes, and what was done about it", "imbalance"),
    Item("14", "What was done for fairness"),
    Item("15", "What the model gives, and its thresholds", "output"),
    Item("16", "Differences between development and evaluation data", "external"),
    Item("17", "Approval by an ethics committee"),
    Item("18a", "Funding"),
    Item("18b", "Conflicts of interest"),
    Item("18c", "Where the protocol is"),
    Item("18d", "Registration"),
    Item("18e", "Where the data are"),
    Item("18f", "Where the code is", "software"),
    Item("19", "Patients and public in the study"),
    Item("20a", "Flow of participants"),
    Item("20b", "Characteristics of participants"),
    Item("20c", "Comparison of development and evaluation data"),
    Item("21", "Number of cases and outcomes in each analysis", "counts"),
    Item("22", "The whole model, so that others can predict", "specification"),
    Item("23a", "Performance with intervals, subgroups included", "performance"),
    Item("23b", "How performance varies between places", "sites"),
    Item("24", "Results of updating"),
    Item("25", "Interpretation"),
    Item("26", "Limitations", "limits"),
    Item("27a", "How input of poor quality is handled", "quality"),
    Item("27b", "Which expertise users need"),
    Item("27c", "Next steps"),
)

CLAIM = (
    Item("1", "A title that names the kind of artificial intelligence"),
    Item("2", "A structured summary"),
    Item("3", "Background, intended use and clinical role"),
    Item("4", "Aims and hypotheses"),
    Item("5", "Prospective or retrospective"),
    Item("6", "Goal of the study", "objective"),
    Item("7", "Sources of the data", "source"),
    Item("8", "What was included and excluded"),
    Item("9", "Preprocessing", "preprocessing"),
    Item("10", "Selection of parts of the data"),
    Item("11", "How data were made anonymous"),
    Item("12", "Missing data"),
    Item("13", "How images were taken"),
    Item("14", "How the reference standard was obtained"),
    Item("15", "Why this reference standard"),
    Item("16", "Who annotated"),
    Item("17", "Annotation of the test set"),
    Item("18", "Agreement between and within raters"),
    Item("19", "How cases were assigned to parts", "split"),
    Item("20", "On which level the parts are disjoint", "disjoint"),
    Item("21", "Intended sample size"),
    Item("22", "The model: inputs, outputs, layers", "model"),
    Item("23", "Software", "software"),
    Item("24", "How parameters were initialised", "initial"),
    Item("25", "Training", "training"),
    Item("26", "How the final model was chosen", "selection"),
    Item("27", "Ensembles", "ensemble"),
    Item("28", "Metrics", "metrics"),
    Item("29", "Significance and uncertainty", "uncertainty"),
    Item("30", "Robustness", "subgroups"),
    Item("31", "Explanations", "explanations"),
    Item("32", "Evaluation on internal data", "performance"),
    Item("33", "Testing on external data", "external"),
    Item("34", "Registration of the trial"),
    Item("35", "Numbers of cases in each part", "counts"),
    Item("36", "Characteristics of the cases in each part"),
    Item("37", "Performance with its uncertainty", "performance"),
    Item("38", "Diagnostic performance and its precision", "operating_points"),
    Item("39", "Failures", "failures"),
    Item("40", "Limitations", "limits"),
    Item("41", "Implications for practice"),
    Item("42", "Where the protocol is"),
    Item("43", "Where software, model and data are", "specification"),
    Item("44", "Funding"),
)
