#!/usr/bin/env bash
# Builds the GPU tests and puts the stripped programs into target/cuda-tests, to be carried to a machine with a GPU and
# without Rust, where run_tests.sh runs them.
#
#     tools/cuda/pack.sh [CARGO ARGUMENTS]      default: the tests of the CUDA backend and of the engine on it
set -euo pipefail
cd "$(dirname "$0")/../.."
[ $# -gt 0 ] ||
  set -- -p lily-gpu -p lily-engine --test cuda --test cuda_words --test cuda_fault --test cuda_figures --test cuda_ring --test devices
out=target/cuda-tests
rm -rf "$out"
mkdir -p "$out"
cargo test --no-run --message-format=json "$@" |
  python3 -c 'import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("reason") == "compiler-artifact" and message.get("executable") and message["profile"]["test"]:
        print(message["target"]["name"], message["executable"])' |
  while read -r name program; do strip -o "$out/$name" "$program"; done
du -h "$out"/*
