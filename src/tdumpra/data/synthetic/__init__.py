"""Synthetic skin lesions: a data set without a download, whose exact class posterior is known."""

from tdumpra.data.synthetic.dataset import bayes_posterior as bayes_posterior
from tdumpra.data.synthetic.dataset import synthetic_manifest as synthetic_manifest
