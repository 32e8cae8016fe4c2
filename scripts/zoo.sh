#!/usr/bin/env bash
# Every method preset, 20 steps each, as one sweep: a small real model, real TOFU files, 15 minutes on two cores.
#   scripts/zoo.sh MODEL_FOLDER TOFU_FOLDER [more overrides]
set -euo pipefail
model=$1 tofu=$2
shift 2
unlearn-run -m 'method=glob(*,exclude=none)' "model.path=$model" "data.source=$tofu" data.split=forget01 \
  data.limit.retain=60 data.limit.real_authors=10 data.limit.world_facts=10 data.limit.holdout=20 suite.generate=false \
  trainer.max_steps=20 trainer.batch_size=8 trainer.save_model=false logger=none "$@"
