# Shared by the suites in this directory; sourced, not run.
#
# A suite runs on ext4 and on tensorfs, side by side on the same machine, and fails on whatever tensorfs does not pass
# and ext4 does. Everything it makes lies in one scratch directory, and goes with it.
#
#   TENSORFS_BIN       the program to test (default: target/debug/tensorfs, built if it is not there)
#   TENSORFS_TEST_DIR  where pools, images and scratch files go (default: target/tmp)
#   TENSORFS_SUITES    where programs that cargo installs are kept (default: target/suites)
#   TENSORFS_INSTALL   0: what is missing is not installed; the suite is skipped

set -euo pipefail

suites=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$suites/../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
tools=${TENSORFS_SUITES:-$target/suites}
suite=$(basename "$0")
# How long a call of tensorfs itself may take: no suite waits for ever.
patience=300

die() {
    echo "$suite: $*" >&2
    exit 1
}

# Says why nothing can be tested here, and is no failure.
skip() {
    echo "SKIPPED: $suite: $*"
    exit 0
}

need_root() {
    [[ $EUID == 0 ]] || skip "needs root"
    [[ -w /dev/fuse ]] || skip "/dev/fuse: not writable"
}

# A program of a package: installed when that is possible, else the suite is skipped.
need() { # PROGRAM PACKAGE
    command -v "$1" >/dev/null && return
    if [[ ${TENSORFS_INSTALL:-1} != 0 && $EUID == 0 ]] && command -v apt-get >/dev/null; then
        DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$2" >&2 || true
    fi
    command -v "$1" >/dev/null || skip "$1: not found (package $2)"
}

# What comes from crates.io.
declare -A versions=([pjdfstest]=0.2.2 [fsx]=0.3.2)

# One of them, installed under the target directory. Sets `program` to its path and `name` to its name and version.
need_crate() { # NAME
    program=$tools/bin/$1
    name="$1 ${versions[$1]}"
    if [[ ! -x $program || $("$program" --version 2>/dev/null) != "$name" ]]; then
        [[ ${TENSORFS_INSTALL:-1} != 0 ]] || skip "$name: not installed"
        CARGO_TARGET_DIR=$tools/build \
            cargo install --quiet --locked --root "$tools" --version "${versions[$1]}" "$1" >&2 ||
            skip "$name: cannot be installed"
    fi
}

# The argument of --passthrough, as a list in `modes`.
passthrough_modes() {
    case $1 in
        on | off) modes=("$1") ;;
        both) modes=(on off) ;;
        *) die "--passthrough: $1: not one of on, off, both" ;;
    esac
}

tensorfs() {
    timeout "$patience" "$TENSORFS_BIN" "$@"
}

# --- the scratch directory, and what is mounted in it ---------------------------------------------

scratch=
# Mount points have short names: a socket's path has at most 107 bytes.
mounts=
mounted=()

start() {
    if [[ -z ${TENSORFS_BIN:-} ]]; then
        TENSORFS_BIN=$target/debug/tensorfs
        [[ -x $TENSORFS_BIN ]] || (cd "$root" && cargo build --quiet --workspace --bins)
    fi
    TENSORFS_BIN=$(realpath "$TENSORFS_BIN")
    local parent=${TENSORFS_TEST_DIR:-$target/tmp}
    mkdir -p "$parent"
    scratch=$(mktemp -d "$(realpath "$parent")/$suite.XXXXXX")
    mounts=$(mktemp -d)
    # Tests become other users.
    chmod 755 "$mounts"
    trap finish EXIT
    trap 'exit 130' INT TERM
}

finish() {
    local status=$? at
    stop_killing
    for at in "${mounted[@]}"; do
        if [[ $at == "$mounts"/t* ]]; then
            tensorfs umount "$at" || tensorfs umount --lazy "$at" || umount -l "$at" || true
        else
            umount "$at" || umount -l "$at"
        fi
    done
    for at in "${mounted[@]}"; do
        if mountpoint -q "$at"; then
            echo "$suite: $at: still mounted" >&2
            exit 1
        fi
    done
    if [[ -n ${KEEP:-} ]]; then
        echo "kept: $scratch"
        rm -rf --one-file-system "$mounts"
    else
        rm -rf --one-file-system "$scratch" "$mounts"
    fi
    exit "$status"
}

# Mounts a new ext4 in a file: what tensorfs is compared with. Sets `at`.
mount_ext4() { # SIZE
    at=$mounts/ext4
    mkdir "$at"
    truncate -s "$1" "$scratch/ext4.image"
    mkfs.ext4 -q "$scratch/ext4.image"
    mount -o loop "$scratch/ext4.image" "$at" || skip "ext4 cannot be mounted from a file here"
    mounted+=("$at")
}

# --- servers that die -----------------------------------------------------------------------------

# Of --kill: so many milliseconds a server serves, on average, until it is killed.
kill_after=
killer=

# Kills the servers of a mount, until it is told to end; says how many in the end.
kill_servers() { # POOL MOUNTPOINT
    local kills=0 ending= pid
    trap 'ending=1' TERM
    while [[ -z $ending ]]; do
        sleep "$(awk -v ms="$kill_after" -v seed="$RANDOM" 'BEGIN { srand(seed); print 2 * ms * rand() / 1000 }')"
        pid=$(sed -n 's/.*"pid": *\([0-9]\+\).*/\1/p' "$1/lock") || continue
        # Between two servers it is that of the one that has ended.
        if [[ -n $pid && $(cat "/proc/$pid/comm" 2>/dev/null) == tensorfs ]] && kill -9 "$pid" 2>/dev/null; then
            kills=$((kills + 1))
        fi
        # This is answered by the next one: on a machine that is busy none would get to serve else.
        ((kills % 5 == 0)) || timeout "$patience" stat -f "$2" >/dev/null || true
    done
    echo "$kills servers were killed"
}

# Returns when none is killed any more.
stop_killing() {
    if [[ -n $killer ]]; then
        kill "$killer" 2>/dev/null || true
        while kill -0 "$killer" 2>/dev/null; do
            sleep 0.05
        done
        killer=
    fi
}

pools=0

# Creates a pool and mounts it; with --kill its servers are killed from then on. Sets `at`.
mount_tensorfs() { # OPTION...
    pools=$((pools + 1))
    at=$mounts/t$pools
    mkdir "$at"
    tensorfs create "$scratch/pool$pools" >/dev/null
    tensorfs mount "$scratch/pool$pools" "$at" --log "$scratch/server$pools.log" ${kill_after:+-o keeper} "$@"
    mounted+=("$at")
    if [[ -n $kill_after ]]; then
        kill_servers "$scratch/pool$pools" "$at" &
        killer=$!
        # It is none of those that a suite waits for.
        disown "$killer"
    fi
}

# Unmounts what was mounted last. The server must not have met anything it calls an error.
umount_tensorfs() {
    stop_killing
    tensorfs umount "${mounted[-1]}"
    unset 'mounted[-1]'
    if grep -E ' ERROR |panicked' "$scratch/server$pools.log" | grep -v 'SIGKILL); another one takes over'; then
        echo "FAILED: errors in the server's log"
        return 1
    fi
}
