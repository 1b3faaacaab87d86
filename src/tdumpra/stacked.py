"""The estimator for scikit-learn's own tools, which pass one array."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils.validation import check_is_fitted

from tdumpra.checks import check_count, check_groups
from tdumpra.core.groups import group_folds
from tdumpra.estimator import DualPathClassifier
from tdumpra.method.outputs import are_names

_SEED = 1  # with that of cross-fitting, all rows that are tuned on would be dealt into one of its folds


class StackedDualPathClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A :class:`DualPathClassifier` that takes one array, for scikit-learn's own tools.

    The first columns of ``X`` are the classifier's probabilities, one for each class in sorted order, and the rest is
    the embedding: ``np.hstack([p, z])``. ``fit`` deals whole groups into folds, tunes on one fold and builds the bank
    from the others, so that no row is tuned with a bank that holds it. The probabilities must come from a classifier
    that was not trained on these rows: held-out predictions, or those of ``cross_val_predict``.

    Parameters of the classifier are searched under its name, as in ``{"classifier__n_prototypes": [1, 5]}``. Lesions
    must reach ``fit``: ``cross_val_predict`` takes them as ``params={"groups": lesions}``, ``GridSearchCV`` with
    ``set_fit_request(groups=True)`` under scikit-learn's metadata routing.

    Args:
        classifier: the settings; it is cloned, and left unfitted.
        folds: number of folds, one of which is tuned on.

    Attributes:
        classifier_: the fitted classifier.
        classes_: the sorted labels.
    """

    def __init__(self, classifier: DualPathClassifier, *, folds: int = 5) -> None:
        self.classifier = classifier
        self.folds = folds

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Build the bank from most groups, and tune on the rest."""
        rows, given = np.asarray(X), self.classifier.n_classes
        if rows.ndim != 2 or np.shape(y) != (len(rows),):
            raise ValueError(f"X needs rows of columns and y a label for each row, not {rows.shape} and {np.shape(y)}")
        self.classes_, numbers = np.unique(np.asarray(y), return_inverse=True)
        if given is not None and not are_names(y):
            self.classes_, numbers = np.arange(given), np.asarray(y)
        elif given is not None and given != len(self.classes_):
            raise ValueError(
                f"y names {len(self.classes_)} classes where n_classes is {given}, so that the columns of X cannot be "
                "told apart: number the labels from 0, in the order of the columns"
            )
        lesions = check_groups(groups, "groups", n_rows=len(rows))
        check_count(self.folds, "folds", least=2)
        fold = group_folds(lesions, numbers, self.folds, seed=_SEED)
        self.n_features_in_ = rows.shape[1]

        def part(keep: NDArray[np.bool_]) -> tuple[Any, Any, Any, Any]:
            return *self._split(rows[keep]), numbers[keep], None if lesions is None else lesions[keep]

        _, *bank_rows = part(fold > 0)
        self.classifier_ = clone(self.classifier).set_params(n_classes=len(self.classes_))
        self.classifier_.fit(*bank_rows, class_names=None if self.classes_.dtype.kind in "iu" else self.classes_)
        self.classifier_.tune(*part(fold == 0))
        return self

    def predict_proba(self, X: Any) -> Any:
        """Return final probabilities."""
        check_is_fitted(self, "classifier_")
        return self.classifier_.predict_proba(*self._split(np.asarray(X)))

    def predict(self, X: Any) -> Any:
        """Return labels."""
        numbers = self.predict_proba(X).argmax(1)
        return self.classes_[numbers]

    def _split(self, rows: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        return rows[:, : len(self.classes_)], rows[:, len(self.classes_) :]
