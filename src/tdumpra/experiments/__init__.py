"""The paper's tables and figures: the stages of a run over a grid of small changes."""
