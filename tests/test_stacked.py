"""The estimator inside scikit-learn's own tools."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sklearn
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.validation import check_is_fitted

from tdumpra import DualPathClassifier, StackedDualPathClassifier
from tests.support import Array, make_problem

pytestmark = pytest.mark.filterwarnings("ignore:validation is small")
PROBLEM = make_problem(dtype=np.float64)
P, Z, Y, GROUPS, _ = (np.concatenate(column) for column in zip(*PROBLEM[:2], strict=True))
X: Array = np.hstack([P, Z])
X_TEST: Array = np.hstack(PROBLEM.test[:2])
NAMES = np.array(["bkl", "df", "mel", "nv"])


def stacked(n_prototypes: int = 3, **params: Any) -> StackedDualPathClassifier:
    return StackedDualPathClassifier(DualPathClassifier(n_prototypes, **{"preset": "paper-swapped", **params}))


class TestFit:
    def test_no_row_is_tuned_with_a_bank_that_holds_it(self):
        fitted = stacked().fit(X, Y, GROUPS).classifier_
        train, validation = fitted._train, fitted._validation
        assert train is not None
        assert validation is not None
        assert len(train) + len(validation) == len(X)
        assert not {*train.groups} & {*validation.groups}
        assert 0.15 < len(validation) / len(X) < 0.25
        rows = {row.tobytes() for row in train.z.numpy()}
        assert not any(row.tobytes() in rows for row in validation.z.numpy())

    def test_agrees_with_the_two_steps(self):
        model = stacked().fit(X, Y, GROUPS)
        train, validation = model.classifier_._train, model.classifier_._validation
        by_hand = DualPathClassifier(3, preset="paper-swapped", n_classes=4).fit(train.z, train.y, train.groups)
        by_hand.tune(validation.p, validation.z, validation.y, validation.groups)
        test = PROBLEM.test
        assert np.array_equal(model.predict_proba(X_TEST), by_hand.predict_proba(test.p, test.z))
        assert model.score(X_TEST, test.y) == by_hand.score(test.p, test.z, test.y)

    @pytest.mark.parametrize("labels", [NAMES, np.array([1, 2, 5, 9]), np.array([0.0, 1.0, 2.0, 3.0])])
    def test_labels_are_whatever_sorts(self, labels):
        model = stacked().fit(X, labels[Y], GROUPS)
        assert model.classes_.tolist() == labels.tolist()
        expected = labels[stacked().fit(X, Y, GROUPS).predict(X_TEST)]
        assert model.predict(X_TEST).tolist() == expected.tolist()

    def test_a_class_without_a_row_is_counted_if_it_is_meant(self):
        kept = Y != 3
        model = stacked(n_classes=4)
        with pytest.warns(UserWarning, match="no row of class"):
            model.fit(X[kept], Y[kept])
        assert model.predict_proba(X_TEST).shape == (160, 4)
        with pytest.raises(ValueError, match="must sum to one"):
            stacked().fit(X[kept], Y[kept])

    def test_the_settings_are_left_unfitted(self):
        model = stacked(selection="crossfit")
        with pytest.raises(NotFittedError):
            model.predict(X)
        model.fit(X, Y, GROUPS)
        check_is_fitted(model)
        assert not hasattr(model.classifier, "bank_")
        assert model.classifier_.estimate_ is not None


class TestTools:
    def test_clone(self):
        model = clone(StackedDualPathClassifier(DualPathClassifier(2), folds=3))
        assert is_classifier(model)
        assert (model.folds, model.classifier.n_prototypes) == (3, 2)

    def test_cross_val_predict(self):
        folds = GroupKFold(3)
        found = cross_val_predict(
            stacked(), X, NAMES[Y], groups=GROUPS, cv=folds, params={"groups": GROUPS}, method="predict_proba"
        )
        train, test = next(folds.split(X, Y, GROUPS))
        by_hand = stacked().fit(X[train], NAMES[Y][train], GROUPS[train]).predict_proba(X[test])
        assert np.array_equal(found[test], by_hand)
        assert (found.argmax(1) == Y).mean() > (P.argmax(1) == Y).mean()

    def test_grid_search(self):
        grid = {"classifier__n_prototypes": [1, 3]}
        search = GridSearchCV(stacked(), grid, cv=3).fit(X, Y)
        scores = [cross_val_score(stacked(k), X, Y, cv=3).mean() for k in (1, 3)]
        np.testing.assert_allclose(search.cv_results_["mean_test_score"], scores)
        assert search.best_estimator_.classifier_.n_prototypes == search.best_params_["classifier__n_prototypes"]

    def test_grid_search_hands_groups_to_every_fit(self, monkeypatch):
        seen = []
        fit = StackedDualPathClassifier.fit

        def spy(self: Any, X: Any, y: Any, groups: Any = None) -> Any:
            seen.append(groups)
            return fit(self, X, y, groups)

        with sklearn.config_context(enable_metadata_routing=True):
            model = stacked().set_fit_request(groups=True)
            search = GridSearchCV(model, {"classifier__n_prototypes": [1, 3]}, cv=GroupKFold(2))
            monkeypatch.setattr(StackedDualPathClassifier, "fit", spy)
            search.fit(X, Y, groups=GROUPS)
        assert len(seen) == 5
        assert all(groups is not None for groups in seen)

    def test_names_that_lack_a_class_are_refused(self):
        model = StackedDualPathClassifier(DualPathClassifier(n_classes=len(NAMES)))
        some = Y != 2
        with pytest.raises(ValueError, match="n_classes is 4"):
            model.fit(X[some], NAMES[Y[some]], GROUPS[some])

    def test_pipeline(self):
        pipeline = make_pipeline(FunctionTransformer(np.asarray), stacked())
        assert pipeline.fit(X, Y, stackeddualpathclassifier__groups=GROUPS).score(X_TEST, PROBLEM.test.y) == (
            stacked().fit(X, Y, GROUPS).score(X_TEST, PROBLEM.test.y)
        )
