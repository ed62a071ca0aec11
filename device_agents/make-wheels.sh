#!/usr/bin/env bash
# Makes the folder of wheels that `install.sh --offline DIR` installs from. See --help.
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
usage: make-wheels.sh [options] DIR

Fills DIR with FlowEdge and all that it needs, for `install.sh --offline DIR` on devices without a way out. Run it on
a device of the kind that it is for: the same processor, the same release of Python, and, of Jetsons, the same JetPack.

  --python PYTHON     the interpreter the wheels are for (/usr/bin/python3)
  --torch-index URL   take PyTorch from this index instead of the one for this kind of device
TEXT
}

python='' index='' target=''
while (($#)); do
    case $1 in
        --python) need_value "$1" $# && python=$2 && shift ;;
        --torch-index) need_value "$1" $# && index=$2 && shift ;;
        -h | --help) usage && exit ;;
        -*) die "unknown option $1; --help lists them" ;;
        *) [[ -z $target ]] || die "one DIR is taken, not $target and $1" && target=$1 ;;
    esac
    shift
done
[[ -n $target ]] || die "DIR is missing; --help tells more"
python=$(pick_python "$python")
index=${index:-$(torch_index)}
mkdir -p "$target"
target=$(cd "$target" && pwd)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m venv "$work/venv"
pip=("$work/venv/bin/python" -m pip --disable-pip-version-check --quiet)
mkdir "$work/source"
copy_source "$checkout" "$work/source"

name_other_index "$index" PyTorch
say "getting torch"
get_torch "$index" "$checkout/constraints.txt" "${pip[@]}" wheel --wheel-dir "$target"
wheel=$(find "$target" -name 'torch-[0-9]*.whl' -printf '%T@ %f\n' | sort -n | tail -1)
version=${wheel#*torch-}
version=${version%%-*}
sed "s/^torch==[^ ]*/torch==$version/" "$checkout/constraints.txt" >"$work/constraints.txt"
say "getting the rest"
command -v "${CXX:-g++}" >/dev/null || say "no C++ compiler: torch will compute layers, two to four times slower than FlowEdge's" \
    "kernels; apt-get install g++, and run this again"
rm -f "$target"/flowedge-*.whl
"${pip[@]}" wheel --wheel-dir "$target" --find-links "$target" --constraint "$work/constraints.txt" "$work/source"
# Where its wheels are not known to work, install.sh tries it.
"${pip[@]}" wheel --wheel-dir "$target" --find-links "$target" --constraint "$work/constraints.txt" bitsandbytes accelerate ||
    say "pip found no bitsandbytes for this device: nf4, fp4 and llm-int8 are refused on it"
say "$(find "$target" -name '*.whl' | wc -l) wheels in $target"
