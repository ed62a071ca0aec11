# Shared by install.sh, uninstall.sh and make-wheels.sh; sourced, not run.
# shellcheck shell=bash disable=SC2034 # the scripts use the constants

# What is installed is read by the users of the services, whatever the umask of the administrator. Keys are made by
# flowedge, with modes of their own.
umask 022

PREFIX=/opt/flowedge
CONFIG=/etc/flowedge
UNITS=(flowedge-agent.service flowedge-draft-node.service flowedge-enrol.service flowedge-serve.service)
MINIMUM_PYTHON=3.10

say() { printf '%s: %s\n' "$(basename "$0")" "$*"; }

# die MESSAGE: what was wrong and what to do about it; the script ends.
die() {
    printf '%s: error: %s\n' "$(basename "$0")" "$*" >&2
    exit 1
}

need_root() { [[ $EUID -eq 0 ]] || die "this takes root: run it with sudo"; }

# need_value OPTION COUNT: COUNT is how many arguments are left, the option among them.
need_value() { (($2 > 1)) || die "$1 needs a value; --help tells more"; }

# pick_python [PYTHON]: prints an interpreter that can make virtual environments.
pick_python() {
    local python=${1:-}
    if [[ -z $python ]]; then
        if [[ -x /usr/bin/python3 ]]; then python=/usr/bin/python3; else python=$(command -v python3 || true); fi
    fi
    [[ -n $python ]] || die "python3 is missing: install Python $MINIMUM_PYTHON or later, or name one with --python"
    "$python" -I -c "import sys; sys.exit(sys.version_info < (${MINIMUM_PYTHON/./, }))" ||
        die "$python is $("$python" --version 2>&1); Python $MINIMUM_PYTHON or later is needed: name one with --python"
    "$python" -I -c 'import ensurepip, venv' 2>/dev/null ||
        die "$python cannot make virtual environments: apt-get install python3-venv"
    printf '%s\n' "$python"
}

# copy_source CHECKOUT DIRECTORY: what the package is built from, where a build may write.
copy_source() {
    local file
    for file in pyproject.toml setup.py README.md LICENSE flowedge testbed; do
        [[ -e $1/$file ]] || die "$1 is no checkout of FlowEdge: $file is missing"
        cp -R "$1/$file" "$2/"
    done
}

# hermetic_pip PYTHON ARGUMENTS...: pip that no configuration of this machine leads to an index.
hermetic_pip() {
    local python=$1
    shift
    PIP_CONFIG_FILE=/dev/null "$python" -I -m pip --isolated --disable-pip-version-check "$@"
}
