"""Validates manifests of Kubernetes strictly: unknown fields are errors. Resources of other projects are read as YAML: FILE …"""
import sys

import kubernetes_validate
import yaml

for path in sys.argv[1:]:
    with open(path) as file:
        for manifest in yaml.safe_load_all(file):
            if "kserve" in manifest["apiVersion"]:
                assert manifest["kind"] in ("ServingRuntime", "InferenceService") and manifest["metadata"]["name"], path
            else:
                kubernetes_validate.validate(manifest, "1.33", strict=True)
print("all manifests are valid")
