#!/usr/bin/env bash
# Checks the files of examples/cluster by the parsers of their programs, which a new venv of PyPI's packages holds (about 400 MB).
# slurm.py runs the script for Slurm.
set -euo pipefail
cd "$(dirname "$0")/../../examples/cluster"
venv=$(mktemp -d)
trap 'rm -rf "$venv"' EXIT
python3 -m venv "$venv"
"$venv/bin/pip" install --quiet kubernetes-validate==1.37.0 skypilot==0.14.1
for version in 1.31 1.37; do
    "$venv/bin/kubernetes-validate" --strict --no-warn --kubernetes-version "$version" kubernetes.yaml
done
"$venv/bin/python" -c 'import sky; print(sky.Task.from_yaml("skypilot.yaml"))'
if command -v docker-compose > /dev/null; then
    NESTOR_SECRET=x NODE_RANK=0 MASTER=10.0.0.1 WORK=/work docker-compose --file compose.yaml config --quiet
    echo "compose.yaml: read by docker-compose"
else
    echo "compose.yaml: not checked, docker-compose is missing (apt-get install docker-compose)"
fi
bash -n slurm.sbatch
