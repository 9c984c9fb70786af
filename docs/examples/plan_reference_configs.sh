#!/usr/bin/env bash
# Amazon's three reference configurations, on the hosts that AWS names (8 x A100 of 40 GB, 400 Gbit/s): what fits.
set -euo pipefail
configs="$(dirname "$0")/configs"
plan() { smdp plan "$configs/$1" --ranks-per-host 8 --device-memory 40GB --sequence 512 --precision fp16 "${@:2}"; }

plan gpt2_10b.json --hosts 16 --batch 1280 --most 5 # 40 for each 4 ranks
plan gpt2_30b.json --hosts 16 --batch 512 --most 5  # 32 for each 8
plan gpt2_60b.json --hosts 32 --batch 896 --most 5  # 56 for each 16
