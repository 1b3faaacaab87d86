#!/usr/bin/env bash
# The study on HAM10000, command by command: bash studies/ham10000/study.sh STEP, from the repository's root.
#   folds, views, sites, recipe   train on a GPU, and write data/outputs/*.npz; call again until nothing is left
#   tables                        make figures, tables and pictures of all of these files, without a GPU
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
  docs=docs/results
  for each in folds-seed-0 folds-seed-1 recipe-paper recipe-paper-grouped; do
    "$PYTHON" -m tdumpra evaluate studies/ham10000/$each-saved.toml --out $results/$each
    mkdir -p $results/whole/$each $docs/ham10000/$each
    cp $results/$each/evaluation.json $results/whole/$each/
  done
  "$PYTHON" -m sitegen.compact_results $results/whole $docs/ham10000
  for seed in 0 1; do
    "$PYTHON" -m benchmarks.recount $results/folds-seed-$seed/evaluation.json "$OUT"/fold-?-seed-$seed.npz
    "$PYTHON" -m benchmarks.opinions "$OUT"/fold-?-seed-$seed.npz --out $docs/opinions.json
    "$PYTHON" -m benchmarks.tried "$OUT"/fold-?-seed-$seed.npz --out $docs/tried.json
  done
  # the first seed's validation rows choose theta; on the second seed it stands
  "$PYTHON" -m benchmarks.cost "$OUT"/fold-?-seed-0.npz --out $docs/cost.json
  theta=$("$PYTHON" -c 'import json; found = json.load(open("docs/results/cost.json"))[0]; print(found["theta"][found["chosen"]])')
  "$PYTHON" -m benchmarks.cost "$OUT"/fold-?-seed-1.npz --theta "$theta" --out $docs/cost.json
  for seed in 0 1; do
    "$PYTHON" -m benchmarks.posteriors studies/ham10000/folds-seed-$seed-saved.toml $results/folds-seed-$seed \
      "$OUT"/views-fold-?-seed-$seed.npz --theta "$theta" --out $docs/ham10000/folds-seed-$seed/posteriors.npz
  done
  "$PYTHON" -m benchmarks.headline $docs/ham10000/folds-seed-{0,1}/posteriors.npz --out $docs/ham10000/folds/headline.json
  "$PYTHON" -m benchmarks.recount $docs/ham10000/folds/headline.json $docs/ham10000/folds-seed-{0,1}/posteriors.npz
  sites=()
  for file in "$OUT"/site-*.npz; do
    name=$(basename "$file" | sed 's/^site-\(.*\)-seed-.*$/\1/')
    sites+=("$name=$file")
  done
  "$PYTHON" -m benchmarks.sites "${sites[@]}" --out $docs/sites.json
  "$PYTHON" -m sitegen.study_charts
  "$PYTHON" -m sitegen.results_tables  # tests then name the sentences of the pages that no longer hold
  ;;
*)
  echo "usage: bash studies/ham10000/study.sh folds|views|sites|recipe|tables" >&2
  exit 2
  ;;
esac
