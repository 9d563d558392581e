#!/usr/bin/env bash
# A Dask scheduler and single-threaded workers for dkrr on this machine, until Ctrl-C or until a command ends.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: start.sh [options] [-- COMMAND ...]

Starts `dask scheduler` and `dask worker` and stops both when it ends. With a COMMAND: runs it when the workers have
started, with the address in DASK_SCHEDULER_ADDRESS, and ends with its exit status. Without: runs until Ctrl-C.

  -w, --workers N     worker processes, one thread each  [default: the number of cores]
  -m, --memory SIZE   memory limit of each worker, such as 4GiB  [default: the machine's memory / cores]
  -s, --scratch DIR   folder for the workers' own files  [default: a temporary one, deleted at the end]
  -p, --port PORT     of the scheduler  [default: 8786]
      --host ADDRESS  address to listen on  [default: 127.0.0.1, which other machines cannot reach]
      --tls DIR       encrypt, and accept only who has the certificates in DIR, made by cluster/certificates.py
      --dashboard     serve Dask's dashboard on port 8787 (needs bokeh)  [default: --no-dashboard]
  -h, --help          this text
TEXT
}

fail() {
    echo "start.sh: $1" >&2
    exit "${2:-2}"
}

workers=$(getconf _NPROCESSORS_ONLN) memory=auto scratch= port=8786 host=127.0.0.1 tls= dashboard=no
while (($#)); do
    case $1 in
        -w | --workers | -m | --memory | -s | --scratch | -p | --port | --host | --tls)
            (($# > 1)) || fail "$1 needs a value" ;;&
        -w | --workers) workers=$2 && shift 2 ;;
        -m | --memory) memory=$2 && shift 2 ;;
        -s | --scratch) scratch=$2 && shift 2 ;;
        -p | --port) port=$2 && shift 2 ;;
        --host) host=$2 && shift 2 ;;
        --tls) tls=$2 && shift 2 ;;
        --dashboard) dashboard=yes && shift ;;
        --no-dashboard) dashboard=no && shift ;;
        -h | --help) usage && exit ;;
        --) shift && break ;;
        *) fail "unknown argument $1; see --help" ;;
    esac
done
[[ $workers =~ ^[1-9][0-9]*$ ]] || fail "--workers $workers must be a whole number, at least 1"
[[ $port =~ ^[1-9][0-9]*$ ]] || fail "--port $port must be a whole number, at least 1"
command -v dask >/dev/null || fail "the dask command is missing; activate the environment in which dkrr is installed"

folder=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export DASK_LOGGING__DISTRIBUTED=${DASK_LOGGING__DISTRIBUTED:-warning}
protocol=tcp
if [[ $tls ]]; then
    [[ -r $tls/environment.sh ]] || fail "--tls $tls has no environment.sh; make it with cluster/certificates.py"
    [[ $dashboard == no ]] || fail "--dashboard would answer without certificates; leave it out with --tls"
    protocol=tls
    # shellcheck source=/dev/null
    source "$tls/environment.sh"
fi
export DASK_SCHEDULER_ADDRESS=$protocol://$host:$port

temporary=$(mktemp -d -t dkrr-cluster-XXXXXX)
pids=()
stop() {
    trap - EXIT
    # Workers first: without a scheduler they would wait for it to return.
    for pid in "${pids[@]}"; do
        kill "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    rm -rf "$temporary"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# Workers find the scheduler by this file: the one started here, never another one at the same port.
file=$temporary/scheduler.json
# The web server (health, metrics, and optionally the dashboard) stays on the same address.
pages=(--no-dashboard --dashboard-address "$host:0")
[[ $dashboard == no ]] || pages=(--dashboard-address "$host:8787")
dask scheduler --protocol "$protocol" --host "$host" --port "$port" --scheduler-file "$file" "${pages[@]}" >&2 &
scheduler=$!
pids=("$scheduler")
dask worker --protocol "$protocol" --scheduler-file "$file" --host "$host" --nworkers "$workers" --nthreads 1 --memory-limit "$memory" \
    --local-directory "${scratch:-$temporary}" --death-timeout 60 --no-dashboard --dashboard-address "$host:0" --preload dkrr.preload >&2 &
worker=$!
pids=("$worker" "$scheduler")
python "$folder/wait_for_workers.py" --scheduler-file "$file" --workers "$workers" --timeout 60 >/dev/null &
waiting=$!
pids=("$waiting" "$worker" "$scheduler")
# Ends with the wait, or with a scheduler or worker that could not start (for example because a port is in use).
if ! { wait -n && kill -0 "$scheduler" && kill -0 "$worker" && wait "$waiting"; } 2>/dev/null; then
    fail "the cluster did not start; see above" 1
fi
pids=("$worker" "$scheduler")
echo "start.sh: $workers workers at $DASK_SCHEDULER_ADDRESS; dkrr fit --scheduler $DASK_SCHEDULER_ADDRESS ..." >&2

if (($#)); then
    # In the background and waited for, so that a signal to this script is handled at once.
    "$@" &
    pids=("$!" "${pids[@]}")
    wait "$!"
else
    wait -n
    exit 1
fi
