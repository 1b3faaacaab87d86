"""Ways to other tools: MLflow, FiftyOne, MONAI's bundles. Each imports its library where it is used."""
