#!/usr/bin/env python3
"""Cuts the Kubernetes API schemas that our manifests need out of the PyPI package kubernetes-validate.

usage: extract.py UNPACKED_WHEEL VERSION > kubernetes-VERSION.json

    pip download --no-deps kubernetes-validate==1.37.0 && unzip -q -d wheel *.whl
    python3 tests/deploy/schemas/extract.py wheel 1.37 > tests/deploy/schemas/kubernetes-1.37.json

Keeps the definitions that the KINDS below reach and drops every description, so that the checks run
without a network. The definitions are strict: an unknown field is an error.
"""

import json
import pathlib
import sys

# apiVersion, kind, and the schema file in the package.
KINDS = [
    ("v1", "Namespace", "namespace-v1"),
    ("v1", "Service", "service-v1"),
    ("v1", "ServiceAccount", "serviceaccount-v1"),
    ("v1", "ConfigMap", "configmap-v1"),
    ("v1", "PersistentVolumeClaim", "persistentvolumeclaim-v1"),
    ("apps/v1", "StatefulSet", "statefulset-apps-v1"),
    ("batch/v1", "Job", "job-batch-v1"),
    ("policy/v1", "PodDisruptionBudget", "poddisruptionbudget-policy-v1"),
    ("networking.k8s.io/v1", "NetworkPolicy", "networkpolicy-networking-v1"),
]
# References stand as "[FILE]#/$defs/NAME".
REFERENCE = "#/$defs/"


def without_descriptions(node, is_map=False):
    """`is_map`: the keys are names of fields, one of which may be "description"."""
    if isinstance(node, list):
        return [without_descriptions(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        key: without_descriptions(value, is_map=key in ("properties", "$defs") and not is_map)
        for key, value in sorted(node.items())
        if is_map or not (key == "description" or key.startswith("x-kubernetes"))
    }


def references(node):
    if isinstance(node, list):
        for item in node:
            yield from references(item)
    elif isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"].rpartition(REFERENCE)[2]
        for value in node.values():
            yield from references(value)


def local(node):
    """The same schema with references into our own file."""
    if isinstance(node, list):
        return [local(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        key: REFERENCE + value.rpartition(REFERENCE)[2] if key == "$ref" else local(value)
        for key, value in node.items()
    }


def main(wheel, version):
    base = pathlib.Path(wheel) / "kubernetes_validate/kubernetes-json-schema"
    folder = base / f"v{version}.0-local-strict"
    definitions = json.loads((folder / "_definitions.json").read_text())["$defs"]
    kinds = {}
    for api_version, kind, file in KINDS:
        schema = json.loads((folder / f"{file}.json").read_text())
        kinds[f"{api_version}/{kind}"] = without_descriptions(schema)
    kept, open_names = {}, set(references(list(kinds.values())))
    while open_names:
        name = open_names.pop()
        kept[name] = without_descriptions(definitions[name])
        open_names |= set(references(kept[name])) - kept.keys()
    result = {
        "source": f"PyPI kubernetes-validate 1.37.0, Kubernetes {version} API, Apache-2.0",
        "kinds": local(kinds),
        "$defs": local(kept),
    }
    # One definition per line: differences between versions can be read.
    print("{")
    print(f' "source": {json.dumps(result["source"])},')
    for section in ("kinds", "$defs"):
        print(f" {json.dumps(section)}: {{")
        lines = [
            f"  {json.dumps(name)}: {json.dumps(value, separators=(',', ':'))}"
            for name, value in sorted(result[section].items())
        ]
        print(",\n".join(lines))
        print(" }," if section == "kinds" else " }")
    print("}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2])
