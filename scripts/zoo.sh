#!/usr/bin/env bash
# Every method preset, 20 steps each, as one sweep on a small real model and the real TOFU files.
#   scripts/zoo.sh MODEL_FOLDER TOFU_FOLDER [more overrides]
set -euo pipefail
model=$1 tofu=$2
shift 2
unlearn-run -m 'method=glob(*,exclude=none)' "model.path=$model" "data.source=$tofu" \
  data.split=forget01 data.limit.retain=160 trainer.max_steps=20 trainer.save_model=false logger=none "$@"
