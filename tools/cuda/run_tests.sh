#!/usr/bin/env bash
# Runs the programs that pack.sh made, on a machine with an NVIDIA GPU. Fails if a test fails, and if one skips: here
# nothing is missing. A test's arguments may follow, such as part of its name.
#
#     tools/cuda/run_tests.sh [ARGUMENTS]
#     CHECKER="compute-sanitizer --error-exitcode 9" tools/cuda/run_tests.sh    under a memory checker
set -uo pipefail
cd "$(dirname "$0")/../../target/cuda-tests" || exit 2
nvidia-smi --query-gpu=name,driver_version,memory.free --format=csv,noheader || { echo "no NVIDIA GPU here" >&2; exit 2; }
failed=()
for program in ./*; do
  log=$(mktemp)
  # shellcheck disable=SC2086 # CHECKER is a command with its arguments.
  ${CHECKER:-} "$program" --nocapture --test-threads 1 "$@" 2>&1 | tee "$log"
  [ "${PIPESTATUS[0]}" -eq 0 ] || failed+=("$program failed")
  grep -q "skips:" "$log" && failed+=("$program skipped tests")
  rm "$log"
done
[ ${#failed[@]} -eq 0 ] && { echo "all passed"; exit 0; }
printf '%s\n' "${failed[@]}" >&2
exit 1
