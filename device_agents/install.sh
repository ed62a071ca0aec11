#!/usr/bin/env bash
# Installs the agent as a service of systemd. See --help.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
checkout=$(dirname "$here")
# shellcheck source=device_agents/lib/common.sh
source "$here/lib/common.sh"
# shellcheck source=device_agents/lib/torch.sh
source "$here/lib/torch.sh"
# shellcheck source=device_agents/lib/packages.sh
source "$here/lib/packages.sh"

usage() {
    cat <<'TEXT'
usage: install.sh [options]

Installs FlowEdge from this checkout into /opt/flowedge, as services of systemd that run as the user flowedge, and
starts the agent. Run again after a change of the checkout, it upgrades; settings and state are kept. On x86-64 with
Python 3.11 and PyTorch's CPU build, only wheels with known hashes are taken; LOCKED=no in the environment leaves that out.

  --offline DIR       install from this folder of wheels (make-wheels.sh makes it) and from nowhere else
  --no-start          neither enable nor start the agent
  --serve             enable and start the gateway on this device, too (flowedge-serve.service, docs/gateway.md)
  --python PYTHON     the interpreter to install for (/usr/bin/python3)
  --torch-index URL   take PyTorch from this index instead of the one for this kind of device
TEXT
}

# stamp: what an installation depends on; the same stamp, and nothing has to be installed.
stamp() {
    "$python" --version
    if [[ -n $wheels ]]; then
        (cd "$wheels" && find . -name '*.whl' -printf '%f %s\n' | sort && cat flowedge-*.whl | sha256sum)
    else
        (cd "$checkout" && printf '%s\n' "$index" "$(command -v "${CXX:-g++}")" &&
            find pyproject.toml setup.py constraints*.txt flowedge testbed -name __pycache__ -prune -o -type f -print0 |
            sort -z | xargs -0 sha256sum)
    fi | sha256sum
}

# make_environment: an environment that an installation ended well in is kept, so that an upgrade installs what has changed.
make_environment() {
    if [[ -r $PREFIX/stamp && $("$PREFIX/bin/python" --version) == "$("$python" --version)" ]]; then
        rm "$PREFIX/stamp"
    else
        "$python" -I -m venv --clear "$PREFIX"
    fi
}

install_package() {
    local now work
    now=$(stamp)
    if [[ -r $PREFIX/stamp && $(<"$PREFIX/stamp") == "$now" ]]; then
        say "$PREFIX has just this version"
        return
    fi
    say "installing into $PREFIX with $("$python" --version)"
    make_environment
    if [[ -n $wheels ]]; then
        local offline=(hermetic_pip "$PREFIX/bin/python" install --quiet --no-compile --no-index --find-links "$wheels")
        # Alone first: pip would judge what else is needed by the same version that is installed already.
        "${offline[@]}" --force-reinstall --no-deps flowedge
        "${offline[@]}" --upgrade --upgrade-strategy eager flowedge ||
            die "$wheels does not hold all that FlowEdge needs for $("$python" --version): make it anew with make-wheels.sh"
        check_kernels "$PREFIX/bin/python"
        try_bitsandbytes "$PREFIX/bin/python" "${offline[@]}"
    else
        work=$(mktemp -d)
        # shellcheck disable=SC2064 # the directory of now is meant
        trap "rm -rf '$work'" EXIT
        # -I and --isolated: neither modules nor settings of the user that became root, who may not be trusted so far.
        local pip=("$PREFIX/bin/python" -I -m pip --isolated --disable-pip-version-check --quiet install --no-compile)
        mkdir "$work/source"
        copy_source "$checkout" "$work/source"
        command -v "${CXX:-g++}" >/dev/null || say "no C++ compiler: torch will compute layers, two to four times slower than" \
            "FlowEdge's kernels; apt-get install g++, and run this again"
        if [[ ${LOCKED:-yes} == yes && $index == "$CPU_INDEX" && $(wheel_kind "$python") == "$LOCK_KIND" ]]; then
            install_locked "$PREFIX/bin/python" "$checkout" "$work/source" "$work" "${pip[@]}"
        else
            name_other_index "$index" PyTorch
            get_torch "$index" "$checkout/constraints.txt" "${pip[@]}"
            check_kernels "$PREFIX/bin/python"
            constraints_for "$PREFIX/bin/python" "$checkout/constraints.txt" >"$work/constraints.txt"
            "${pip[@]}" --constraint "$work/constraints.txt" "$work/source"
            try_bitsandbytes "$PREFIX/bin/python" "${pip[@]}" --constraint "$work/constraints.txt"
        fi
    fi
    # Now, since the services may not write here. Some packages hold modules of newer Pythons, which cannot be compiled.
    "$PREFIX/bin/python" -I -m compileall -qq -j 0 "$PREFIX/lib" || true
    printf '%s\n' "$now" >"$PREFIX/stamp"
    preflight "$PREFIX/bin/python"
}

# install_config TEMPLATE TARGET [EXAMPLE]: settings are a person's; what is there is kept.
install_config() {
    if [[ -e $2 ]]; then
        say "$2 is kept; the settings of this version are in $CONFIG/${3:-agent.toml}.example"
    else
        install -m 644 "$1" "$2"
    fi
}

install_system() {
    local work
    install -D -m 644 "$here/sysusers.d/flowedge.conf" /etc/sysusers.d/flowedge.conf
    systemd-sysusers /etc/sysusers.d/flowedge.conf
    # Where flowedge join writes before the services first start.
    install -d -m 700 -o flowedge -g flowedge /var/lib/flowedge
    install -d -m 700 -o flowedge-enrol -g flowedge-enrol /var/lib/flowedge-enrol
    install -d -m 700 -o flowedge-serve -g flowedge-serve /var/lib/flowedge-serve
    install -m 644 -t /etc/systemd/system "${UNITS[@]/#/$here/systemd/}"
    install -d -m 755 "$CONFIG" /usr/local/bin
    work=$(mktemp)
    # Ports that a firewall can be told, and that stay over restarts.
    sed '0,/^#port = 0$/s//port = 7070/; s/^#links_port = 0$/links_port = 7071/' "$here/agent.toml" >"$work"
    install -m 644 "$here/agent.toml" "$CONFIG/agent.toml.example"
    install_config "$work" "$CONFIG/agent.toml"
    sed -i 's/^#model = ""$/model = "bundled"/' "$work"
    install_config "$work" "$CONFIG/draft-node.toml"
    rm "$work"
    install -m 644 "$here/serve.toml" "$CONFIG/serve.toml.example"
    install_config "$here/serve.toml" "$CONFIG/serve.toml" serve.toml
    ln -sfn "$PREFIX/bin/flowedge" /usr/local/bin/flowedge
    # Not where nothing has been booted, as in the making of an image.
    if [[ -d /run/systemd/system ]]; then systemctl daemon-reload; fi
}

start() {
    local service=flowedge-agent.service
    # The draft node is an agent itself.
    if systemctl --quiet is-enabled flowedge-draft-node.service; then service=flowedge-draft-node.service; fi
    systemctl enable --quiet "$service"
    systemctl restart "$service" || die "it did not start; journalctl -u $service says why"
    systemctl try-restart flowedge-enrol.service flowedge-serve.service
    say "$service runs; flowedge devices lists the agents, journalctl -u $service shows what it does"
}

start_gateway() {
    systemctl enable --quiet flowedge-serve.service
    # Not waited for: the gateway is ready when a pipeline is.
    systemctl restart --no-block flowedge-serve.service
    say "flowedge-serve.service is being started; journalctl -u flowedge-serve says when it serves, and where"
}

wheels='' python='' index='' start=yes serve=no
while (($#)); do
    case $1 in
        --offline) need_value "$1" $# && wheels=$2 && shift ;;
        --no-start) start=no ;;
        --serve) serve=yes ;;
        --python) need_value "$1" $# && python=$2 && shift ;;
        --torch-index) need_value "$1" $# && index=$2 && shift ;;
        -h | --help) usage && exit ;;
        *) die "unknown argument $1; --help lists them" ;;
    esac
    shift
done
need_root
for tool in systemctl systemd-sysusers; do
    command -v "$tool" >/dev/null || die "$tool is missing: the services need systemd"
done
python=$(pick_python "$python")
case $(readlink -f "$python") in
    /home/* | /root/*) die "$python lies in a home directory, which the services cannot read: name another with --python" ;;
esac
if [[ -n $wheels ]]; then
    wheels=$(cd "$wheels" 2>/dev/null && pwd) || die "$wheels is no folder"
    compgen -G "$wheels/flowedge-*.whl" >/dev/null || die "$wheels holds no wheel of flowedge: fill it with make-wheels.sh"
else
    index=${index:-$(torch_index)}
fi
install_package
install_system
if [[ $start == yes ]]; then
    start
    if [[ $serve == yes ]]; then start_gateway; fi
else
    say "installed; systemctl enable --now flowedge-agent starts the agent"
fi
