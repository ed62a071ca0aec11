#!/usr/bin/env bash
# Takes away what install.sh installed. See --help.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=device_agents/lib/common.sh
source "$here/lib/common.sh"

usage() {
    cat <<'TEXT'
usage: uninstall.sh [--purge]

Stops the services and removes them and /opt/flowedge. Settings (/etc/flowedge), the identity (/var/lib/flowedge), the key
of a cluster that was made here (/var/lib/flowedge-enrol), API keys (/var/lib/flowedge-serve) and cached weights
(/var/cache/flowedge) are kept.

  --purge   remove those too, and the users; the device has to join a cluster anew after that
TEXT
}

purge=no
while (($#)); do
    case $1 in
        --purge) purge=yes ;;
        -h | --help) usage && exit ;;
        *) die "unknown argument $1; --help lists them" ;;
    esac
    shift
done
need_root
for unit in "${UNITS[@]}"; do
    if [[ -e /etc/systemd/system/$unit ]]; then
        systemctl disable --quiet --now "$unit"
        rm -f "/etc/systemd/system/$unit"
    fi
done
systemctl daemon-reload
rm -rf "$PREFIX"
if [[ $(readlink /usr/local/bin/flowedge) == "$PREFIX/bin/flowedge" ]]; then rm /usr/local/bin/flowedge; fi
if [[ $purge == yes ]]; then
    rm -rf "$CONFIG" /var/{lib,cache}/flowedge /var/lib/flowedge-enrol /var/{lib,cache}/flowedge-serve
    rm -rf /etc/systemd/system/flowedge-*.service.d
    for user in flowedge flowedge-enrol flowedge-serve; do
        if getent passwd "$user" >/dev/null; then userdel "$user"; fi
    done
    rm -f /etc/sysusers.d/flowedge.conf
    say "removed, with its settings, identity and caches"
else
    say "removed; $CONFIG, /var/lib/flowedge* and /var/cache/flowedge are kept (--purge removes them)"
fi
