"""Synthetic skin lesions: a data set without a download, whose exact class posterior is known."""

from __future__ import annotations

from tdumpra.data.synthetic.dataset import LesionReader as LesionReader
from tdumpra.data.synthetic.dataset import bayes_posterior as bayes_posterior
from tdumpra.data.synthetic.dataset import synthetic_manifest as synthetic_manifest
from tdumpra.data.synthetic.latent import Lesions as Lesions
from tdumpra.data.synthetic.latent import draw_lesions as draw_lesions
from tdumpra.data.synthetic.modes import CLASS_NAMES as CLASS_NAMES
from tdumpra.data.synthetic.modes import CLASS_SHARES as CLASS_SHARES
