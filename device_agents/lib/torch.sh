# Which build of PyTorch a device gets; sourced, not run. Paths are below $ROOT, which is empty but in tests.
# shellcheck shell=bash

CPU_INDEX=https://download.pytorch.org/whl/cpu
JETPACK6_INDEX=https://pypi.jetson-ai-lab.io/jp6/cu126
JETPACK7_INDEX=https://pypi.jetson-ai-lab.io/sbsa/cu130

# l4t_release: prints the major release of Jetson Linux, such as 36; nothing where the device is no Jetson.
l4t_release() {
    local file=${ROOT:-}/etc/nv_tegra_release
    if [[ -r $file ]]; then
        sed -n '1s/^# R\([0-9][0-9]*\) .*/\1/p' "$file"
    elif device_model | grep -q -i jetson; then
        die "this is a $(device_model), but $file does not say which JetPack it has: flash it with JetPack 6 or later"
    fi
}

# device_model: what the device tree calls this device; nothing on a PC.
device_model() {
    local file=${ROOT:-}/proc/device-tree/model
    if [[ -r $file ]]; then tr -d '\0' <"$file"; fi
}

# is_orin: whether this device is a Jetson Orin.
is_orin() { device_model | grep -q -i 'jetson.*orin'; }

# check_kernels PYTHON: that PyTorch has kernels for an Orin (sm_87), where this is one. A build for servers (SBSA) is imported
# without an error and fails at its first kernel. Kernels for sm_80 and sm_86 run on sm_87.
check_kernels() {
    local kinds
    is_orin || return 0
    kinds=$("$1" -I -c 'import torch; print(*torch.cuda.get_arch_list())') || die "PyTorch cannot be imported in $1"
    [[ -z $kinds || " $kinds " =~ \ (sm|compute)_8[067]\  ]] || die "this PyTorch has kernels for $kinds, and an Orin is sm_87: it is" \
        "a build for servers or for another board; name an index with one for JetPack with --torch-index"
    [[ -n $kinds ]] || say "this PyTorch computes on the CPU alone: name an index with one for JetPack with --torch-index"
}

# torch_index: prints the index that holds this device's build of PyTorch.
torch_index() {
    local release
    release=$(l4t_release) || exit 1
    if [[ -z $release ]]; then
        printf '%s\n' "$CPU_INDEX"
    elif ((release >= 38)) && is_orin; then
        die "JetPack 7 (Jetson Linux R$release) on an Orin: no index of NVIDIA's holds a PyTorch for it. Name one that does with" \
            "--torch-index, install from a folder of wheels with --offline, or flash JetPack 6" \
            "(device_agents/notes/jetson-orin-nano-nx.md)"
    elif ((release >= 38)); then
        printf '%s\n' "$JETPACK7_INDEX"
    elif ((release == 36)); then
        printf '%s\n' "$JETPACK6_INDEX"
    else
        die "Jetson Linux R$release has a Python that is too old for FlowEdge: flash JetPack 6 (R36) or later"
    fi
}

# torch_requirement INDEX CONSTRAINTS: what to ask pip for. The tested version where the CPU build is taken; the newest
# that an index for other devices has, whatever is tested elsewhere.
torch_requirement() {
    local version
    version=$(sed -n 's/^torch==\([0-9.]*\).*/\1/p' "$2")
    [[ -n $version ]] || die "$2 names no version of torch"
    if [[ $1 == "$CPU_INDEX" ]]; then printf 'torch==%s+cpu\n' "$version"; else printf 'torch>=2.6\n'; fi
}

# get_torch INDEX CONSTRAINTS PIP...: has pip (`pip wheel ...` or `pip install ...`) get torch alone. The CPU build is marked as
# such in its version, so it is looked for where pip is configured to look first. An index for other devices is asked
# alone, so that no newer build without their accelerator is taken.
get_torch() {
    local index=$1 requirement
    requirement=$(torch_requirement "$1" "$2") || exit 1
    shift 2
    if [[ $index != "$CPU_INDEX" ]]; then
        "$@" --no-deps --index-url "$index" "$requirement" && return
    else
        "$@" --no-deps "$requirement" 2>/dev/null && return
        "$@" --no-deps --index-url "$index" "$requirement" && return
    fi
    die "$requirement was not found in $index: name another index with --torch-index, or install from a folder of" \
        "wheels with --offline"
}

# constraints_for PYTHON CONSTRAINTS: the tested versions, with torch's being that which PYTHON's environment has.
constraints_for() {
    local installed
    installed=$("$1" -I -c 'from importlib.metadata import version; print(version("torch"))') || exit 1
    sed "s/^torch==[^ ]*/torch==$installed/" "$2"
}
