"""The figures that the paper reports (Tables 1 to 3), as they are printed, to stand beside ours."""

from __future__ import annotations

from typing import NamedTuple

from tdumpra.evaluation.over_seeds import Figure

TABLE_METRICS = ("accuracy", "macro_f1", "balanced_accuracy", "ece", "macro_auroc")  # in the paper's order


class Backbone(NamedTuple):
    """A backbone of Tables 1 and 2: the paper's name for it, and timm's with the tag of its weights.

    The paper says "ImageNet pretraining" and no more. Each tag is of ImageNet-1k alone: timm's default where that is
    one, else the weights that the backbone's own paper published for it.
    """

    name: str
    timm: str

    @property
    def architecture(self) -> str:
        """Return timm's name without the tag."""
        return self.timm.split(".")[0]


BACKBONES = (
    Backbone("ConvNeXt-Tiny", "convnext_tiny.fb_in1k"),
    Backbone("EfficientNet-B0", "efficientnet_b0.ra_in1k"),
    Backbone("ResNet-101", "resnet101.a1h_in1k"),
    Backbone("ViT-B", "vit_base_patch16_224.augreg_in1k"),
    Backbone("Swin-B", "swin_base_patch4_window7_224.ms_in1k"),
)

# Tables 1 and 2: mean and deviation of three seeds in the order of TABLE_METRICS, then "Delta Acc".
_TABLES = {
    "ham10000": """
        ConvNeXt-Tiny   without  0.8800±0.0032 0.7991±0.0051 0.7934±0.0048 0.0862±0.0035 0.9773±0.0012 -
        ConvNeXt-Tiny   with     0.8951±0.0028 0.8090±0.0045 0.8012±0.0042 0.0834±0.0031 0.9793±0.0010 +1.72%
        EfficientNet-B0 without  0.7675±0.0085 0.5702±0.0102 0.5516±0.0120 0.1298±0.0055 0.9262±0.0018 -
        EfficientNet-B0 with     0.7845±0.0072 0.5999±0.0095 0.5772±0.0105 0.1030±0.0048 0.9266±0.0016 +2.21%
        ResNet-101      without  0.8165±0.0058 0.6422±0.0080 0.5896±0.0090 0.1314±0.0050 0.9494±0.0015 -
        ResNet-101      with     0.8220±0.0052 0.6659±0.0075 0.6304±0.0085 0.1269±0.0045 0.9545±0.0013 +0.67%
        ViT-B           without  0.8265±0.0050 0.6903±0.0065 0.6614±0.0070 0.1248±0.0042 0.9515±0.0014 -
        ViT-B           with     0.8480±0.0042 0.7182±0.0060 0.6635±0.0065 0.1188±0.0040 0.9525±0.0012 +2.61%
        Swin-B          without  0.8960±0.0025 0.8095±0.0040 0.7860±0.0045 0.0781±0.0030 0.9787±0.0010 -
        Swin-B          with     0.9030±0.0022 0.8229±0.0035 0.7992±0.0040 0.0766±0.0025 0.9800±0.0008 +0.78%
    """,
    "isic2019": """
        ConvNeXt-Tiny   without  0.7036±0.0032 0.5536±0.0051 0.5127±0.0048 0.2316±0.0035 0.9126±0.0012 -
        ConvNeXt-Tiny   with     0.7226±0.0028 0.5916±0.0045 0.5639±0.0042 0.2136±0.0031 0.9166±0.0010 +2.69%
        EfficientNet-B0 without  0.6188±0.0035 0.4409±0.0041 0.4169±0.0037 0.2605±0.0043 0.8682±0.0024 -
        EfficientNet-B0 with     0.6247±0.0032 0.4547±0.0046 0.4298±0.0040 0.2490±0.0038 0.8675±0.0021 +0.96%
        ResNet-101      without  0.6990±0.0043 0.5474±0.0060 0.5232±0.0057 0.2312±0.0032 0.9094±0.0021 -
        ResNet-101      with     0.7021±0.0041 0.5558±0.0055 0.5288±0.0051 0.2303±0.0028 0.9146±0.0019 +0.44%
        ViT-B           without  0.6307±0.0029 0.4497±0.0036 0.4223±0.0032 0.2656±0.0038 0.8479±0.0019 -
        ViT-B           with     0.6415±0.0031 0.4526±0.0040 0.4261±0.0036 0.2639±0.0037 0.8604±0.0018 +1.72%
        Swin-B          without  0.7155±0.0025 0.5843±0.0031 0.5410±0.0028 0.2120±0.0031 0.9087±0.0015 -
        Swin-B          with     0.7244±0.0023 0.5874±0.0032 0.5599±0.0030 0.2141±0.0026 0.9030±0.0014 +1.25%
    """,
}
DATASETS = tuple(_TABLES)
IMAGES = {"ham10000": 10_015, "isic2019": 25_331}  # labelled images for training, as published

# Table 3, rows 1 to 6: accuracy, macro-F1, balanced accuracy, ECE. One run each, without deviations.
_ABLATION = """
    0.8870 0.8037 0.7807 0.0764
    0.8880 0.8037 0.7807 0.0782
    0.8950 0.8177 0.7994 0.0665
    0.8950 0.8180 0.8008 0.0643
    0.8970 0.8194 0.8018 0.0582
    0.9020 0.8259 0.8088 0.0615
"""
ABLATION = tuple(tuple(Figure(float(cell)) for cell in line.split()) for line in _ABLATION.split("\n") if line.strip())
ABLATION_METRICS = TABLE_METRICS[:4]


def reported(dataset: str, backbone: str, *, with_method: bool) -> dict[str, Figure]:
    """A row of Table 1 or 2, by metric; empty for a backbone that the paper does not have."""
    pairs = (cell.split("±") for cell in _cells(dataset, backbone, with_method=with_method)[:-1])
    return {metric: Figure(float(mean), float(std)) for metric, (mean, std) in zip(TABLE_METRICS, pairs, strict=False)}


def reported_delta(dataset: str, backbone: str) -> str | None:
    """The printed "Delta Acc" of a backbone: its gain in accuracy, in per cent of the baseline's accuracy."""
    return next(iter(_cells(dataset, backbone, with_method=True)[-1:]), None)


def _cells(dataset: str, backbone: str, *, with_method: bool) -> list[str]:
    rows = (line.split() for line in _TABLES[dataset].splitlines() if line.strip())
    start = [backbone, "with" if with_method else "without"]
    return next((cells[2:] for cells in rows if cells[:2] == start), [])
