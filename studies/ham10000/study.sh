#!/usr/bin/env bash
# The study on HAM10000, command by command: bash studies/ham10000/study.sh STEP, from the repository's root.
#   folds, sites, recipe   train on a GPU, and write data/outputs/*.npz; call again until nothing is left
#   tables                 make figures, tables and pictures of the files, without a GPU
# DATA is the folder of the images, SECONDS_LEFT the time that one call may take, PROCESSES the trainings at once. Several
# processes share a GPU best under MPS (nvidia-cuda-mps-control -d), started before.
set -euo pipefail
DATA=${DATA:-data/ham10000}
OUT=${OUT:-data/outputs}
PYTHON=${PYTHON:-python}
export PYTHONPATH=".:src${PYTHONPATH:+:$PYTHONPATH}"

train() {
  "$PYTHON" -m benchmarks.train_study "$OUT" "$@" --processes "${PROCESSES:-5}" --seconds "${SECONDS_LEFT:-86400}" \
    --set "data.source=ham10000:$DATA"
}

case "${1:-}" in
folds)  # ten jobs of two trainings; then the second network that memorises less, on the second seed's folds
  train fold-{0..4}-seed-0 fold-{0..4}-seed-1 && train regular-{0..4}-seed-1
  ;;
views)  # other views of the folds' networks, where their checkpoints still are
  train fold-{0..4}-seed-{0,1} --views
  ;;
sites)  # vidir_molemax and vienna_dias show no akiec; every class is left to train on without any of the four
  train site-{rosendahl,vidir_modern,vidir_molemax,vienna_dias}-seed-{0,1}
  ;;
recipe)
  train recipe-paper-seed-{0,1,2} recipe-paper-grouped-seed-{0,1,2}
  ;;
tables)
  results=runs/results
  "$PYTHON" -m tdumpra evaluate studies/ham10000/folds-saved.toml --out $results/folds
  "$PYTHON" -m benchmarks.recount $results/folds/evaluation.json "$OUT"/fold-*.npz
  "$PYTHON" -m tdumpra evaluate studies/ham10000/recipe-paper-saved.toml --out $results/recipe-paper
  "$PYTHON" -m tdumpra evaluate studies/ham10000/recipe-paper-grouped-saved.toml --out $results/recipe-paper-grouped
  for each in folds recipe-paper recipe-paper-grouped; do
    mkdir -p $results/whole/$each docs/results/ham10000/$each
    cp $results/$each/evaluation.json $results/whole/$each/
  done
  "$PYTHON" -m sitegen.compact_results $results/whole docs/results/ham10000
  "$PYTHON" -m benchmarks.cost "$OUT"/fold-*.npz --out docs/results/cost.json
  # headline.json and posteriors.npz; theta is what benchmarks.cost chose on validation
  theta=$("$PYTHON" -c 'import json; found = json.load(open("docs/results/cost.json")); print(found["theta"][found["chosen"]])')
  "$PYTHON" -m benchmarks.headline studies/ham10000/folds-saved.toml $results/folds "$OUT"/views-fold-*.npz --theta "$theta" \
    --folder docs/results/ham10000/folds
  "$PYTHON" -m benchmarks.recount docs/results/ham10000/folds/{headline.json,posteriors.npz}
  "$PYTHON" -m benchmarks.opinions "$OUT"/fold-*.npz --out docs/results/opinions.json
  "$PYTHON" -m benchmarks.tried "$OUT"/fold-*.npz --out docs/results/tried.json
  sites=(${SITES:-})  # further NAME=FILE, such as those that docs/results/sites.md gives
  for file in "$OUT"/site-*.npz; do
    name=$(basename "$file" | sed 's/^site-\(.*\)-seed-.*$/\1/')
    sites+=("$name=$file")
  done
  "$PYTHON" -m benchmarks.sites "${sites[@]}" --out docs/results/sites.json
  "$PYTHON" -m sitegen.study_charts
  "$PYTHON" -m sitegen.results_tables  # tests then name the sentences of the pages that no longer hold
  ;;
*)
  echo "usage: bash studies/ham10000/study.sh folds|views|sites|recipe|tables" >&2
  exit 2
  ;;
esac
