"""The Kubernetes manifests against the schemas of Kubernetes and KServe, and their options against a real server."""

from __future__ import annotations

import ast
import copy
import importlib.util
import re
import urllib.request
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.serving.soak import ROOT, make_repository, serving

FOLDER = ROOT / "scripts" / "kubernetes"
TRITON, KSERVE = (list(yaml.safe_load_all((FOLDER / name).read_text())) for name in ("triton.yaml", "kserve.yaml"))
SCALARS = {"str": str, "int": int, "bool": bool}


def check_kubernetes(document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def kserve_fields(kind: str) -> dict[str, str]:
    """Type by JSON name, from the classes that KServe generates from its schema; they are read, not imported."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind).lower()
    (folder,) = importlib.util.find_spec("kserve").submodule_search_locations
    tree = ast.parse((Path(folder) / "models" / f"{words}.py").read_text())
    assigned = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id in ("openapi_types", "attribute_map")
    }
    return {assigned["attribute_map"][name]: kind for name, kind in assigned["openapi_types"].items()}


def check_kserve(value: Any, kind: str) -> None:
    """ValueError unless `value` is a `kind` of KServe; what is Kubernetes' own is checked as part of a pod."""
    if kind in SCALARS:
        if type(value) is not SCALARS[kind]:
            raise ValueError(f"{value!r} is no {kind}")
    elif kind.startswith("list["):
        for item in value:
            check_kserve(item, kind[5:-1])
    elif kind == "V1ResourceRequirements":
        container = {"name": "c", "image": "i", "resources": value}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [container]}}
        check_kubernetes(pod)
    elif kind == "V1ObjectMeta":
        check_kubernetes({"apiVersion": "v1", "kind": "ConfigMap", "metadata": value})
    else:
        fields = kserve_fields(kind)
        for name, item in value.items():
            if name not in fields:
                raise ValueError(f"{kind} has no field {name}")
            check_kserve(item, fields[name])


@pytest.mark.parametrize("document", TRITON, ids=lambda document: document["kind"])
def test_kubernetes(document):
    check_kubernetes(document)
    misspelt = copy.deepcopy(document)
    misspelt["spec"]["replicsa"] = 2
    with pytest.raises(kubernetes_validate.ValidationError):
        check_kubernetes(misspelt)


def test_kserve():
    (service,) = KSERVE
    assert (service["apiVersion"], service["kind"]) == ("serving.kserve.io/v1beta1", "InferenceService")
    check_kserve(service, "V1beta1InferenceService")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "predictor", "maxReplica"), 8),
        (("spec", "predictor", "maxReplicas"), "8"),
        (("spec", "predictor", "model", "storageURI"), "pvc://models"),
        (("spec", "predictor", "model", "modelFormat", "nmae"), "triton"),
    ],
)
def test_kserve_mistakes_are_seen(path, value):
    service = copy.deepcopy(KSERVE[0])
    *parents, last = path
    at = service
    for parent in parents:
        at = at[parent]
    at[last] = value
    with pytest.raises(ValueError, match=r"no (field|int)"):
        check_kserve(service, "V1beta1InferenceService")


def test_the_documents_refer_to_each_other():
    kinds = {}
    for document in TRITON:
        kinds.setdefault(document["kind"], []).append(document["spec"])
    (deployment,), services, (budget,) = kinds["Deployment"], kinds["Service"], kinds["PodDisruptionBudget"]
    labels, pod = deployment["template"]["metadata"]["labels"], deployment["template"]["spec"]
    (container,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert deployment["selector"]["matchLabels"] == budget["selector"]["matchLabels"] == labels
    for service in services:
        assert service["selector"] == labels
        assert all(ports[port["targetPort"]] == port["port"] for port in service["ports"])
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert deployment["template"]["metadata"]["annotations"]["prometheus.io/port"] == str(ports["metrics"])
    timeouts = [int(option.split("=")[1]) for option in container["args"] if option.startswith("--exit-timeout-secs")]
    assert timeouts[0] < pod["terminationGracePeriodSeconds"]


def test_a_server_takes_the_options_and_answers_the_probes(digits, tmp_path):
    (container,) = TRITON[0]["spec"]["template"]["spec"]["containers"]
    options = {*container["args"], *KSERVE[0]["spec"]["predictor"]["model"]["args"]} - {"--model-repository=/models"}
    with serving(make_repository(tmp_path, digits["linear"]), tmp_path / "log", sorted(options)) as server:
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            address = f"http://{server.http}{container[probe]['httpGet']['path']}"
            assert urllib.request.urlopen(address, timeout=10).status == 200
