#!/usr/bin/env bash
# Install the workbench on a Jetson into .venv of this checkout. See README.md beside this file.
#   install.sh [--wheels FOLDER | --index URL] [--dry-run]
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
release_file="${JETSON_RELEASE_FILE:-/etc/nv_tegra_release}"
wheels="" index="" dry=false

fail() { echo "install.sh: $*" >&2; exit 1; }
run() { if $dry; then echo "would run: $*"; else "$@"; fi; }

while (($#)); do
    case "$1" in
        --wheels) wheels="${2:-}"; [[ -d "$wheels" ]] || fail "--wheels needs a folder with the wheels of torch and torchvision."; shift 2 ;;
        --index) index="${2:-}"; [[ "$index" == https://* ]] || fail "--index needs an https URL of a package index."; shift 2 ;;
        --dry-run) dry=true; shift ;;
        *) fail "unknown option $1; allowed are --wheels FOLDER, --index URL and --dry-run." ;;
    esac
done
[[ -z "$wheels" || -z "$index" ]] || fail "--wheels and --index exclude each other."
[[ -n "$wheels$index" ]] || fail "name where torch for this board comes from: --wheels FOLDER or --index URL."

[[ -r "$release_file" ]] || fail "this is not a Jetson: there is no $release_file."
release="$(sed -n 's/^# R\([0-9]*\).*/\1/p' "$release_file")"
case "$release" in
    38 | 39) ;;
    35 | 36) fail "this is JetPack $((release - 30)) (Python 3.10 or older), and transformers needs Python 3.11 or newer. Flash JetPack 7.2, or use a container: see assets/jetson/README.md." ;;
    *) fail "the Jetson Linux release '$release' is unknown here; supported is JetPack 7 (R38, R39)." ;;
esac
command -v python3.12 >/dev/null || fail "Python 3.12 is missing: sudo apt install python3.12 python3.12-venv."

run python3.12 -m venv --system-site-packages "$here/.venv" # TensorRT's Python module comes from the system
pip=("$here/.venv/bin/python" -m pip install)
# First torch for this board's GPU: pip then leaves it where it is. The plain index would bring one for servers.
if [[ -n "$wheels" ]]; then
    shopt -s nullglob
    found=("$wheels"/torch-*.whl "$wheels"/torchvision-*.whl "$wheels"/onnxruntime_gpu-*.whl)
    ((${#found[@]} >= 2)) || fail "$wheels holds no wheels of torch and torchvision."
    run "${pip[@]}" "${found[@]}"
else
    run "${pip[@]}" --pre --index-url "$index" torch torchvision
fi
run "${pip[@]}" -e "${here}[jetson]"

# What a library lists is not what this GPU can run: compute something.
check='import torch; x = torch.ones(64, 64, device="cuda", dtype=torch.float16); assert float((x @ x)[0, 0]) == 64; print("torch", torch.__version__, "computes on", torch.cuda.get_device_name())'
run "$here/.venv/bin/python" -c "$check" || fail "torch is installed but cannot compute on this GPU; its wheel is for another board (Orin is sm_87)."
run "$here/.venv/bin/python" "$here/launch.py" check --device cuda --dtype fp16
echo "Start it with: .venv/bin/python launch.py --device cuda --dtype fp16 --host 0.0.0.0 --auth name:password --no-open"
