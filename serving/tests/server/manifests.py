"""Validates manifests of Kubernetes strictly: unknown fields are errors. Resources of other projects are read as YAML: FILE …"""
import pathlib
import sys

import kubernetes_validate
import yaml

for path in sys.argv[1:]:
    with open(path) as file:
        for manifest in yaml.safe_load_all(file):
            kind = manifest["kind"]
            if "kserve" in manifest["apiVersion"]:
                assert kind in ("ServingRuntime", "InferenceService") and manifest["metadata"]["name"], path
            elif kind == "Kustomization":
                others = {p.name for p in pathlib.Path(path).parent.glob("*.yaml")} - {pathlib.Path(path).name}
                assert set(manifest["resources"]) == others, f"{path}: {others}"
            elif kind == "JobSet":
                for job in manifest["spec"]["replicatedJobs"]:
                    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]}, **job["template"]}
                    kubernetes_validate.validate(job, "1.33", strict=True)
            elif kind == "TrainingRuntime":
                policy, nodes = manifest["spec"]["mlPolicy"], manifest["spec"]["template"]["spec"]["replicatedJobs"]
                assert policy["numNodes"] == 4 and len(policy) == 2 and {"mpi", "torch"} & set(policy), path
                for node in nodes:
                    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": node["name"]}, **node["template"]}
                    # Kubeflow Trainer writes what a Job needs, and a pod that is not restarted.
                    pod = {**job["spec"]["template"]["spec"], "restartPolicy": "Never"}
                    job["metadata"] |= node["template"].get("metadata", {})
                    job["spec"] = {**job["spec"], "template": {"spec": pod}}
                    kubernetes_validate.validate(job, "1.33", strict=True)
            elif kind == "TrainJob":
                assert manifest["spec"]["runtimeRef"]["name"] == manifest["metadata"]["name"], path
                assert "of-opt" in manifest["spec"]["trainer"]["command"], path
            else:
                kubernetes_validate.validate(manifest, "1.33", strict=True)
print("all manifests are valid")
