# Shared by the jobs of one run, which source it in the checkout.
#
# PRORL_RUN is the run's directory: journals, addresses of services, the token, logs. PRORL_VENV names
# another environment than the checkout's .venv.

: "${PRORL_RUN:?is not set: name a directory for the run that all nodes see}"
case $PRORL_RUN in
/*) ;;
*)
    echo "PRORL_RUN=$PRORL_RUN is not an absolute path" >&2
    exit 2
    ;;
esac
venv=${PRORL_VENV:-$PWD/.venv}
export PRORL_RUN PATH="$venv/bin:$PATH"
command -v prorl >/dev/null || {
    echo "there is no prorl in $venv or on the PATH: submit from a checkout, after make setup" >&2
    exit 2
}
mkdir -p "$PRORL_RUN"/{services,journals,jobs,logs}
chmod go-w "$PRORL_RUN/services" # a front sends the token to services announced there
(
    umask 077
    token=$PRORL_RUN/token
    if [ ! -e "$token" ]; then
        od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$token.$SLURM_JOB_ID"
        ln "$token.$SLURM_JOB_ID" "$token" 2>/dev/null || true # another job was first
        rm "$token.$SLURM_JOB_ID"
    fi
)

node_address() { # the address by which Slurm itself reaches this node
    scontrol -o show node "$SLURMD_NODENAME" | sed -n 's/.* NodeAddr=\([^ ]*\).*/\1/p'
}

requeue_unless_ended() { # ended by scancel, or by Slurm, which then requeued the job itself
    [ "$(squeue -h -j "$SLURM_JOB_ID" -o %T)" != RUNNING ] || scontrol requeue "$SLURM_JOB_ID"
}

check_command() { # ends the script if a recipe's COMMAND... lacks something; other commands are not run
    case " $* " in
    *" -m recipes."*) "$@" --dry-run || exit 2 ;;
    esac
}

run_command() { # runs COMMAND..., and passes SIGTERM on; sets status, and terminated if there was one
    "$@" &
    local command=$!
    terminated=
    trap "terminated=yes; kill -TERM $command 2>/dev/null || true" TERM
    status=0
    wait $command || status=$?
    while kill -0 $command 2>/dev/null; do # the signal ended only the wait
        status=0
        wait $command || status=$?
    done
}
