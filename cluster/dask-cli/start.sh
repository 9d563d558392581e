#!/usr/bin/env bash
# A Dask scheduler here and single-threaded workers for dkrr, here or on other machines (SSH), until Ctrl-C or until a
# command ends.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: start.sh [options] [-- COMMAND ...]

Starts `dask scheduler` and `dask worker` and stops both when it ends. With a COMMAND: runs it when the workers have
started, with the address in DASK_SCHEDULER_ADDRESS, and ends with its exit status. Without: runs until Ctrl-C.

  -w, --workers N     worker processes of each machine, one thread each  [default: the number of cores here]
  -m, --memory SIZE   memory limit of each worker, such as 4GiB  [default: the machine's memory / cores]
      --hosts A,B     machines of the workers, reached by ssh without a password, with the same files at the same
                      paths; needs --host, and --tls with DIR on those files  [default: this machine]
  -s, --scratch DIR   folder for the workers' own files  [default: a temporary one, deleted at the end]
  -p, --port PORT     of the scheduler  [default: 8786]
      --host ADDRESS  address to listen on  [default: 127.0.0.1, which other machines cannot reach]
      --tls DIR       encrypt, and accept only who has the certificates in DIR, made by cluster/certificates.py
      --dashboard     serve Dask's dashboard on port 8787 (needs bokeh)  [default: --no-dashboard]
  -h, --help          this text

DKRR_SSH is the command of ssh with its options  [default: ssh]
TEXT
}

fail() {
    echo "start.sh: $1" >&2
    exit "${2:-2}"
}

workers=$(getconf _NPROCESSORS_ONLN) memory=auto scratch= port=8786 host=127.0.0.1 tls= dashboard=no hosts=()
while (($#)); do
    case $1 in
        -w | --workers | -m | --memory | -s | --scratch | -p | --port | --host | --hosts | --tls)
            (($# > 1)) || fail "$1 needs a value" ;;&
        -w | --workers) workers=$2 && shift 2 ;;
        -m | --memory) memory=$2 && shift 2 ;;
        -s | --scratch) scratch=$2 && shift 2 ;;
        -p | --port) port=$2 && shift 2 ;;
        --host) host=$2 && shift 2 ;;
        --hosts) IFS=, read -ra hosts <<<"$2" && shift 2 ;;
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
    tls=$(cd "$tls" && pwd)
    # shellcheck source=/dev/null
    source "$tls/environment.sh"
fi
for name in "${hosts[@]}"; do
    [[ $name =~ ^(127\.0\.0\.1|localhost)$ ]] && continue
    [[ $host != 127.0.0.1 ]] || fail "--hosts has $name, which cannot reach 127.0.0.1; give --host, an address of this machine"
    [[ $tls ]] || fail "--hosts has $name, and who reaches $host could run programs as you; give --tls"
done
export DASK_SCHEDULER_ADDRESS=$protocol://$host:$port

temporary=$(mktemp -d -t dkrr-cluster-XXXXXX)
pids=() machines=()
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
dask scheduler --protocol "$protocol" --host "$host" --port "$port" --scheduler-file "$file" \
    "${pages[@]}" >&2 &
scheduler=$!
pids=("$scheduler")
common=(--protocol "$protocol" --nworkers "$workers" --nthreads 1 --memory-limit "$memory" --death-timeout 60
    --no-dashboard --preload dkrr.preload)
if ((${#hosts[@]})); then
    # The same Python and settings there; -tt ends the worker with its connection.
    settings=()
    for name in $(compgen -e | grep -E '^(DASK_|PYTHONPATH$)'); do settings+=("$name=${!name}"); done
    command=$(printf '%q ' env "${settings[@]}" "$(command -v dask)" worker "$DASK_SCHEDULER_ADDRESS" "${common[@]}" \
        ${scratch:+--local-directory "$scratch"})
    for name in "${hosts[@]}"; do
        # shellcheck disable=SC2086
        ${DKRR_SSH:-ssh} -tt -o BatchMode=yes "$name" "cd $(printf %q "$PWD") && exec $command" </dev/null >&2 &
        machines+=("$!")
    done
else
    dask worker --scheduler-file "$file" --host "$host" "${common[@]}" --local-directory "${scratch:-$temporary}" \
        --dashboard-address "$host:0" >&2 &
    machines=("$!")
fi
pids=("${machines[@]}" "$scheduler")
((workers *= ${#machines[@]}))
python "$folder/wait_for_workers.py" --scheduler-file "$file" --workers "$workers" --timeout 60 >/dev/null &
waiting=$!
pids=("$waiting" "${machines[@]}" "$scheduler")
# Ends with the wait, or with a scheduler or worker that could not start (for example because a port is in use).
if ! { wait -n && kill -0 "$scheduler" && kill -0 "${machines[@]}" && wait "$waiting"; } 2>/dev/null; then
    fail "the cluster did not start; see above" 1
fi
pids=("${machines[@]}" "$scheduler")
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
