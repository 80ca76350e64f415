#!/usr/bin/env bash
# Health of one node, for slurmd's HealthCheckProgram, a prolog or a reboot: read-only, under 60 s, no world of several nodes.
#   node-health.sh          ends 0 when the node is fit, else 1, with the reason on stderr
#   NCCL_BENCH_DRAIN=1      drains the node by itself where a check fails (needs the rights to)
#   NCCL_BENCH_MEASURE=1    measures the node's own collectives, too (a prolog has the GPUs to itself)
set -uo pipefail
limit=${NCCL_BENCH_LIMIT:-50}
report=$(mktemp)
trap 'rm -f "$report"' EXIT

# SLURM_* of the job must not make one node wait for others: doctor looks at this node alone.
alone() { env -u SLURM_PROCID -u SLURM_STEP_ID -u SLURM_STEP_NODELIST -u SLURM_STEP_NUM_TASKS -u SLURM_NTASKS -u SLURM_LOCALID "$@"; }

code=0
alone timeout --kill-after=5 "$limit" nccl-bench doctor -T 5 >"$report" 2>&1 || code=$?
if [ "$code" -eq 0 ] && [ "${NCCL_BENCH_MEASURE:-}" = 1 ]; then
  alone timeout --kill-after=5 "$limit" nccl-bench sweep all_reduce --sizes 1G --budget 2 --name "health-$$" >"$report" 2>&1 || code=$?
fi
if [ "$code" -eq 0 ]; then exit 0; fi
reason=$(grep -m1 -E 'FAIL|exit [0-9]' "$report" | tr -s ' ' | cut -c1-120)
echo "nccl-bench: ${reason:-ended $code after at most $limit s}" >&2
# 8: a check could not be read; that is no proof against the node, and none for it.
if [ "$code" -eq 1 ] && [ "${NCCL_BENCH_DRAIN:-}" = 1 ]; then
  scontrol update nodename="${SLURMD_NODENAME:-$(hostname -s)}" state=drain reason="nccl-bench: $reason"
fi
exit 1
