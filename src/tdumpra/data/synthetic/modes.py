"""The traits of a lesion, the typical looks of each class, and which of them are alike.

The looks follow dermoscopy loosely; they are meant to be told apart by eye, not to teach it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

# HAM10000's class names in alphabetical order, and its long tail with a floor: its rarest class (1 %) would leave a
# validation split of the default 1400 images without a single lesion.
CLASS_SHARES: Final = {
    "akiec": 0.05, "bcc": 0.06, "bkl": 0.105, "df": 0.035, "mel": 0.12, "nv": 0.595, "vasc": 0.035,
}  # fmt: skip
CLASS_NAMES: Final = tuple(CLASS_SHARES)
AMBIGUOUS_MAX: Final = 0.4  # beyond it, melanoma would have no typical lesion left


class Traits(NamedTuple):
    """The visible features of a lesion, each from 0 (absent) to 1 (as strong as possible)."""

    melanin: float = 0.0  # depth of brown
    blood: float = 0.0  # redness of the whole lesion
    irregular: float = 0.0  # raggedness of the border
    sharp: float = 0.0  # abruptness of the border
    variegation: float = 0.0  # several tones, unevenly spread
    network: float = 0.0  # brown mesh
    globules: float = 0.0  # brown dots
    streaks: float = 0.0  # dark rays at the rim
    veil: float = 0.0  # blue-white haze
    nests: float = 0.0  # blue-grey ovoids
    cysts: float = 0.0  # small bright milia
    vessels: float = 0.0  # branching vessels
    dots: float = 0.0  # dotted vessels
    scale: float = 0.0  # rough white keratin
    centre: float = 0.0  # white scar-like patch in the middle
    lacunae: float = 0.0  # red to purple lakes


class Mode(NamedTuple):
    """One typical face of a class, and its share among the typical lesions of that class."""

    label: str
    name: str
    share: float
    traits: Traits


# Hardly a trait belongs to one class alone: network, haze, cysts, scale, vessels and scars each occur in several, so it
# takes a combination to tell. The modes of a class differ as much as classes do: their average looks like none.
MODES: Final = (
    Mode("akiec", "actinic", 0.40, Traits(blood=0.45, irregular=0.5, sharp=0.15, scale=0.85)),
    Mode("akiec", "bowen", 0.35, Traits(melanin=0.1, blood=0.4, irregular=0.4, sharp=0.6, dots=0.85, scale=0.4)),
    Mode("akiec", "pigmented", 0.25, Traits(melanin=0.4, irregular=0.6, sharp=0.25, variegation=0.5, scale=0.6)),
    Mode("bcc", "nodular", 0.40, Traits(blood=0.25, irregular=0.25, sharp=0.5, veil=0.1, vessels=0.9)),
    Mode("bcc", "pigmented", 0.35, Traits(melanin=0.15, blood=0.15, irregular=0.5, sharp=0.4, nests=0.9, vessels=0.3)),
    Mode("bcc", "superficial", 0.25, Traits(blood=0.65, irregular=0.5, sharp=0.15, nests=0.1, vessels=0.45, scale=0.2)),
    Mode("bkl", "keratosis", 0.40, Traits(melanin=0.45, irregular=0.35, sharp=0.95, globules=0.2, cysts=0.85)),
    Mode("bkl", "lentigo", 0.30, Traits(melanin=0.3, irregular=0.75, sharp=0.75, variegation=0.15, network=0.4)),
    Mode("bkl", "lichenoid", 0.15, Traits(melanin=0.1, blood=0.3, irregular=0.4, sharp=0.2, globules=0.7, veil=0.3)),
    Mode("bkl", "keratotic", 0.15, Traits(melanin=0.65, irregular=0.2, sharp=0.95, scale=0.65)),
    Mode("df", "classic", 0.60, Traits(melanin=0.35, irregular=0.1, sharp=0.2, network=0.45, centre=0.9)),
    Mode("df", "pink", 0.40, Traits(blood=0.45, irregular=0.15, sharp=0.2, vessels=0.2, centre=0.75)),
    Mode(
        "mel", "superficial", 0.40,
        Traits(melanin=0.75, irregular=0.85, sharp=0.6, variegation=0.85, network=0.5, streaks=0.3, veil=0.3),
    ),
    Mode("mel", "nodular", 0.25, Traits(melanin=0.95, irregular=0.45, sharp=0.8, variegation=0.5, veil=0.75)),
    Mode(
        "mel", "amelanotic", 0.15,
        Traits(blood=0.65, irregular=0.65, sharp=0.4, variegation=0.5, vessels=0.2, dots=0.4),
    ),
    Mode(
        "mel", "regressing", 0.20,
        Traits(melanin=0.45, irregular=0.8, sharp=0.3, variegation=0.8, globules=0.5, veil=0.4, centre=0.55),
    ),
    Mode("nv", "reticular", 0.34, Traits(melanin=0.5, irregular=0.25, sharp=0.35, variegation=0.2, network=0.85)),
    Mode("nv", "globular", 0.20, Traits(melanin=0.45, irregular=0.2, sharp=0.5, variegation=0.1, globules=0.85)),
    Mode("nv", "dermal", 0.16, Traits(melanin=0.2, blood=0.2, irregular=0.1, sharp=0.3, vessels=0.4)),
    Mode("nv", "blue", 0.08, Traits(melanin=0.45, irregular=0.1, sharp=0.6, veil=0.85)),
    Mode("nv", "starburst", 0.08, Traits(melanin=0.85, irregular=0.1, sharp=0.7, streaks=0.9)),
    Mode("nv", "spitz", 0.07, Traits(blood=0.5, irregular=0.1, sharp=0.75, dots=0.65)),
    Mode("nv", "congenital", 0.07, Traits(melanin=0.6, irregular=0.4, sharp=0.35, globules=0.6, cysts=0.55)),
    Mode("vasc", "cherry", 0.45, Traits(blood=0.45, irregular=0.15, sharp=0.85, lacunae=0.9)),
    Mode(
        "vasc", "angiokeratoma", 0.30,
        Traits(melanin=0.6, blood=0.4, irregular=0.3, sharp=0.75, veil=0.4, scale=0.2, lacunae=0.8),
    ),
    Mode("vasc", "granuloma", 0.25, Traits(blood=0.95, irregular=0.1, sharp=0.9, scale=0.35)),
)  # fmt: skip

# Look-alikes, and each pair's share of all ambiguous lesions.
BRIDGES: Final = (
    ("mel superficial", "nv reticular", 0.26),
    ("bkl keratosis", "nv globular", 0.16),
    ("bkl keratosis", "mel superficial", 0.12),
    ("akiec actinic", "bcc superficial", 0.12),
    ("akiec pigmented", "bkl lentigo", 0.08),
    ("df classic", "nv reticular", 0.08),
    ("mel nodular", "nv blue", 0.06),
    ("bcc nodular", "mel amelanotic", 0.06),
    ("mel nodular", "vasc angiokeratoma", 0.06),
)
