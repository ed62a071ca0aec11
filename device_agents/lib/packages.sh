# Which packages an installation takes, and from where; sourced, not run.
# shellcheck shell=bash disable=SC2034 # the scripts use the constants

PACKAGES_LIB=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
LOCK=constraints-cp311-x86_64.txt
LOCK_KIND='cpython-311 linux x86_64 glibc'

# wheel_kind PYTHON: prints what wheels an interpreter takes, in the words of LOCK_KIND.
wheel_kind() {
    "$1" -I -c 'import platform, sys
print(sys.implementation.cache_tag, sys.platform, platform.machine(), platform.libc_ver()[0])'
}

# install_locked PYTHON CHECKOUT SOURCE WORK PIP...: FlowEdge from SOURCE and what it needs, each wheel with its hash in the
# lock file. The build backend comes first, since its code runs.
install_locked() {
    local python=$1 checkout=$2 source=$3 work=$4
    shift 4
    local hashed=("$@" --require-hashes --no-deps --only-binary :all:)
    grep '^torch==' "$checkout/$LOCK" >"$work/torch.txt"
    grep '^setuptools==' "$checkout/$LOCK" >"$work/backend.txt"
    "${hashed[@]}" --requirement "$work/torch.txt" 2>/dev/null ||
        "${hashed[@]}" --index-url "$CPU_INDEX" --requirement "$work/torch.txt" ||
        die "the build of PyTorch with the hash of $LOCK was not found; LOCKED=no in the environment installs without hashes"
    "${hashed[@]}" --requirement "$work/backend.txt"
    "$@" --no-deps --no-build-isolation "$source"
    while "$python" -I "$PACKAGES_LIB/locked.py" "$checkout/$LOCK" >"$work/next.txt" && [[ -s $work/next.txt ]]; do
        "${hashed[@]}" --requirement "$work/next.txt" ||
            die "not all wheels have the hashes of $LOCK; LOCKED=no in the environment installs without hashes"
    done
    "$python" -I -m pip --disable-pip-version-check check
}

# name_other_index INDEX REQUIREMENT: says what is taken from an index that is neither PyPI nor PyTorch's own.
name_other_index() {
    if [[ $1 != "$CPU_INDEX" ]]; then
        say "$2 is taken from $1, the newest build there, without a hash: whoever runs that index decides what this" \
            "device computes with. --torch-index names another, --offline takes a folder of wheels"
    fi
}

# preflight PYTHON: says what is worth knowing of this device before it serves: its clocks, heat and memory, and what
# computes on it. Nothing fails by that; PREFLIGHT=no in the environment leaves it out.
preflight() {
    local found
    [[ ${PREFLIGHT:-yes} == yes ]] || return 0
    say "trying what this device computes on, which takes some seconds"
    found=$("$1" -I "$PACKAGES_LIB/preflight.py") || found='the trial of this device ended with an error: run flowedge doctor'
    if [[ -n $found ]]; then
        while IFS= read -r line; do say "$line"; done <<<"$found"
    fi
}

# try_bitsandbytes PYTHON PIP...: where its wheels are not known to work, bitsandbytes is installed, tried, and taken away
# again unless it works. Nothing fails without it.
try_bitsandbytes() {
    local python=$1 problem
    shift
    if [[ ${MACHINE:-$("$python" -I -c 'import platform; print(platform.machine())')} == x86_64 ]]; then return; fi
    if ! "$@" bitsandbytes accelerate 2>/dev/null; then
        problem='pip found no wheel for this device'
    else
        say "trying bitsandbytes, which takes some seconds"
        problem=$("$python" -I "$PACKAGES_LIB/try_bitsandbytes.py") || problem='the trial ended with an error'
        if [[ -z $problem ]]; then
            say "bitsandbytes works here: nf4, fp4 and llm-int8 can be used"
            return
        fi
        "$python" -I -m pip --disable-pip-version-check --quiet uninstall --yes bitsandbytes accelerate
    fi
    say "installed without bitsandbytes ($problem): nf4, fp4 and llm-int8 are refused on this device; int8, int4 and w8a16" \
        "need nothing beside PyTorch"
}
