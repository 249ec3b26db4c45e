"""Checks of the Kubernetes manifests that need no cluster and no network.

    bundle = load(pathlib.Path("deploy/kubernetes"))
    for problem in check(bundle, flags): print(problem)

A bundle is what `kubectl apply -k` would send: the resources that kustomization.yaml lists. Every
check is a function from a bundle to a list of problems, each a line that names file, resource and
what is wrong. check() runs them all.
"""

import dataclasses
import functools
import json
import pathlib
import re

import jsonschema
import yaml

HERE = pathlib.Path(__file__).parent
# The oldest API that has all we use (podFailurePolicy, unhealthyPodEvictionPolicy), and the newest.
API_VERSIONS = ("1.31", "1.37")

# Pods that are not ours but that a policy may name: where a user runs the `cadre` command.
OUTSIDE_COMPONENTS = {"control"}
COMPONENT = "app.kubernetes.io/component"
RESTRICTED = "pod-security.kubernetes.io/enforce"

# (from, to, port): who opens a connection to whom.
EDGES = {
    ("worker", "coordinator", 7000),
    ("aggregator", "coordinator", 7000),
    ("control", "coordinator", 7000),
    ("worker", "aggregator", 7001),
    ("worker", "worker", 7002),
}

# Of the overlay with workers on GPUs. NCCL listens on ports that the kernel picks, from this one on.
NCCL_PORT = 32768
GPU_EDGES = {
    ("worker-gpu", "coordinator", 7000),
    ("worker-gpu", "aggregator", 7001),
    ("worker-gpu", "worker-gpu", 7002),
    ("worker-gpu", "worker-gpu", NCCL_PORT),
}

# What a worker exits with when trying again cannot help: wrong flags, refused by the coordinator.
PERMANENT_FAILURES = {2, 64}


class UniqueKeyLoader(yaml.SafeLoader):
    """As the API server in strict mode: a key given twice is an error."""


def _mapping(loader, node):
    seen = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node)
        if key in seen:
            raise yaml.constructor.ConstructorError(
                None, None, f"key '{key}' is given twice", key_node.start_mark
            )
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


UniqueKeyLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


@dataclasses.dataclass
class Resource:
    file: str
    body: dict

    @property
    def kind(self):
        return self.body.get("kind", "")

    @property
    def name(self):
        return self.body.get("metadata", {}).get("name", "")

    @property
    def spec(self):
        return self.body.get("spec", {})

    @property
    def template(self):
        """The pod template of a workload; None for any other kind."""
        return self.spec.get("template") if self.kind in ("StatefulSet", "Job") else None

    def problem(self, text):
        return f"{self.file}: {self.kind}/{self.name}: {text}"


@dataclasses.dataclass
class Bundle:
    kustomization: dict
    # Files in the folder that look like manifests.
    files: set
    resources: list

    def of(self, *kinds):
        return [resource for resource in self.resources if resource.kind in kinds]

    def workloads(self):
        return [resource for resource in self.resources if resource.template is not None]

    def find(self, kind, name):
        return next((r for r in self.resources if (r.kind, r.name) == (kind, name)), None)

    def selected(self, labels):
        """The workloads whose pods carry all the labels."""
        return [
            workload
            for workload in self.workloads()
            if labels.items() <= workload.template["metadata"].get("labels", {}).items()
        ]


def load(folder):
    """Reads the kustomization and the resources it lists. Raises on unreadable YAML."""
    kustomization = yaml.load((folder / "kustomization.yaml").read_text(), UniqueKeyLoader)
    files = {path.name for path in folder.glob("*.y*ml")} - {"kustomization.yaml"}
    resources = []
    for name in kustomization.get("resources", []):
        if (folder / name).is_file():
            for body in yaml.load_all((folder / name).read_text(), UniqueKeyLoader):
                if body:
                    resources.append(Resource(name, body))
    return Bundle(kustomization, files, resources)


def load_overlay(folder):
    """The base and what a folder below it adds, as one bundle; an overlay that only adds."""
    base, own = load(folder.parent), load(folder)
    added = [name for name in own.kustomization["resources"] if name != ".."]
    if len(added) == len(own.kustomization["resources"]):
        raise ValueError(f"{folder} does not build on its base")
    kustomization = {
        **own.kustomization,
        "resources": base.kustomization["resources"] + added,
        "images": base.kustomization["images"] + own.kustomization["images"],
    }
    return Bundle(kustomization, base.files | own.files, base.resources + own.resources)


def containers(workload):
    spec = workload.template["spec"]
    return spec.get("initContainers", []) + spec.get("containers", [])


def component(workload):
    return workload.template["metadata"].get("labels", {}).get(COMPONENT)


def flags_of(container):
    """{'listen': '0.0.0.0:7000', ...}; a flag without '=' maps to None."""
    flags = {}
    for argument in container.get("args", []):
        if argument.startswith("--"):
            name, equals, value = argument[2:].partition("=")
            flags[name] = value if equals else None
    return flags


# ---------------------------------------------------------------------------------------- schema


@functools.cache
def validators(api_version):
    """'apiVersion/kind' -> a strict validator."""
    schemas = json.loads((HERE / "schemas" / f"kubernetes-{api_version}.json").read_text())
    result = {}
    for name, kind in schemas["kinds"].items():
        schema = {key: value for key, value in kind.items() if key != "$id"}
        schema["required"] = ["apiVersion", "kind", "metadata"]
        result[name] = jsonschema.Draft202012Validator({**schema, "$defs": schemas["$defs"]})
    return result


def check_schema(bundle):
    problems = []
    for resource in bundle.resources:
        for api_version in API_VERSIONS:
            api = resource.body.get("apiVersion")
            checker = validators(api_version).get(f"{api}/{resource.kind}")
            if checker is None:
                problems.append(resource.problem(f"no {api} {resource.kind} in {api_version}"))
                continue
            for error in checker.iter_errors(resource.body):
                where = ".".join(str(part) for part in error.absolute_path) or "top level"
                problems.append(resource.problem(f"{api_version}: at {where}: {error.message}"))
    return problems


# --------------------------------------------------------------------------------- kustomization


def check_kustomization(bundle):
    problems = []
    known = {"apiVersion", "kind", "namespace", "resources", "images"}
    for key in bundle.kustomization.keys() - known:
        problems.append(f"kustomization.yaml: these checks do not understand '{key}'")
    listed = bundle.kustomization.get("resources", [])
    for name in sorted(bundle.files - set(listed)):
        problems.append(f"kustomization.yaml: {name} is not listed")
    for name in sorted(set(listed) - bundle.files):
        problems.append(f"kustomization.yaml: {name} is listed but not there")
    return problems


def check_images(bundle):
    problems = []
    images = {image["name"]: image for image in bundle.kustomization.get("images", [])}
    used = set()
    for workload in bundle.workloads():
        for container in containers(workload):
            name = container["image"].split("@")[0]
            used.add(name)
            if name not in images:
                problems.append(workload.problem(f"image {name} has no line in kustomization.yaml"))
    for name, image in images.items():
        tag = str(image.get("newTag", ""))
        if "digest" not in image and tag in ("", "latest"):
            problems.append(f"kustomization.yaml: image {name} needs a tag other than latest")
        if name not in used:
            problems.append(f"kustomization.yaml: image {name} is not used")
    return problems


def check_names(bundle):
    problems, seen = [], set()
    namespace = bundle.kustomization.get("namespace")
    for resource in bundle.resources:
        if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", resource.name):
            problems.append(resource.problem("the name is not a DNS label"))
        if (resource.kind, resource.name) in seen:
            problems.append(resource.problem("there are two of them"))
        seen.add((resource.kind, resource.name))
        if "namespace" in resource.body.get("metadata", {}):
            problems.append(resource.problem("the kustomization sets the namespace, not the file"))
    home = bundle.find("Namespace", namespace)
    if home is None:
        return problems + [f"kustomization.yaml: namespace {namespace} has no Namespace resource"]
    if home.body["metadata"].get("labels", {}).get(RESTRICTED) != "restricted":
        problems.append(home.problem(f"needs the label {RESTRICTED}: restricted"))
    return problems


# ------------------------------------------------------------------------------------- selectors


def check_selectors(bundle):
    problems = []
    for workload in bundle.of("StatefulSet"):
        labels = workload.template["metadata"].get("labels", {})
        for key, value in workload.spec["selector"]["matchLabels"].items():
            if labels.get(key) != value:
                problems.append(workload.problem(f"selector {key}={value} misses its own pods"))
    for service in bundle.of("Service"):
        if not bundle.selected(service.spec.get("selector", {"": ""})):
            problems.append(service.problem("selects no pod"))
    for budget in bundle.of("PodDisruptionBudget"):
        if len(bundle.selected(budget.spec["selector"]["matchLabels"])) != 1:
            problems.append(budget.problem("must select the pods of exactly one workload"))
    covered = [
        workload.name
        for budget in bundle.of("PodDisruptionBudget")
        for workload in bundle.selected(budget.spec["selector"]["matchLabels"])
    ]
    for workload in bundle.workloads():
        if workload.name not in covered:
            problems.append(workload.problem("has no PodDisruptionBudget"))
    return problems


def check_stateful_sets(bundle):
    problems = []
    for workload in bundle.of("StatefulSet"):
        service = bundle.find("Service", workload.spec.get("serviceName"))
        if service is None:
            problems.append(workload.problem("serviceName names no Service"))
        elif service.spec.get("clusterIP") != "None":
            problems.append(workload.problem(f"Service {service.name} is not headless"))
        elif workload not in bundle.selected(service.spec["selector"]):
            problems.append(workload.problem(f"Service {service.name} does not select its pods"))
    return problems


def check_jobs(bundle):
    problems = []
    for job in bundle.of("Job"):
        rules = job.spec.get("podFailurePolicy", {}).get("rules", [])
        ignored = [
            condition["type"]
            for rule in rules
            if rule["action"] == "Ignore"
            for condition in rule.get("onPodConditions", [])
        ]
        fatal = [
            value
            for rule in rules
            if rule["action"] == "FailJob" and rule.get("onExitCodes", {}).get("operator") == "In"
            for value in rule["onExitCodes"]["values"]
        ]
        names = [container["name"] for container in containers(job)]
        if job.spec.get("completionMode") != "Indexed":
            problems.append(job.problem("completionMode must be Indexed"))
        if job.spec.get("completions") != job.spec.get("parallelism"):
            problems.append(job.problem("completions and parallelism must be equal"))
        if job.template["spec"].get("restartPolicy") != "Never":
            problems.append(job.problem("podFailurePolicy needs restartPolicy: Never"))
        if "DisruptionTarget" not in ignored:
            problems.append(job.problem("must ignore DisruptionTarget"))
        for code in sorted(PERMANENT_FAILURES - set(fatal)):
            problems.append(job.problem(f"must fail on exit code {code}"))
        for rule in rules:
            name = rule.get("onExitCodes", {}).get("containerName")
            if name is not None and name not in names:
                problems.append(job.problem(f"podFailurePolicy names no container: {name}"))
        for budget in bundle.of("PodDisruptionBudget"):
            if job in bundle.selected(budget.spec["selector"]["matchLabels"]):
                least = budget.spec.get("minAvailable")
                if not isinstance(least, int) or least >= job.spec.get("parallelism", 0):
                    problems.append(
                        budget.problem("a Job needs minAvailable: a number below its parallelism")
                    )
    return problems


# -------------------------------------------------------------------------------- ports, addresses


def port_names(container):
    return {port.get("name"): port["containerPort"] for port in container.get("ports", [])}


def check_ports(bundle):
    problems = []
    for service in bundle.of("Service"):
        for workload in bundle.selected(service.spec.get("selector", {"": ""})):
            names = {}
            for container in containers(workload):
                names.update(port_names(container))
            for port in service.spec["ports"]:
                target = port.get("targetPort", port["port"])
                if target not in names and target not in names.values():
                    problems.append(service.problem(f"targetPort {target}: no such port"))
    for workload in bundle.workloads():
        for container in containers(workload):
            listen = flags_of(container).get("listen") or ""
            port = int(listen.rpartition(":")[2] or 0)
            if listen and port not in port_names(container).values():
                problems.append(workload.problem(f"listens on {port}, which no port declares"))
    return problems


def check_probes(bundle):
    problems = []
    for workload in bundle.workloads():
        for container in containers(workload):
            ports = port_names(container)
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                given = container.get(probe)
                if given is None:
                    if "grpc" in ports:
                        problems.append(workload.problem(f"{container['name']} has no {probe}"))
                elif given.get("grpc", {}).get("port") != ports.get("grpc"):
                    problems.append(workload.problem(f"{probe} does not ask its gRPC port"))
    return problems


def check_addresses(bundle):
    """host.NAMESPACE.svc:port in flags must lead to a Service with that port."""
    problems = []
    namespace = bundle.kustomization.get("namespace")
    for workload in bundle.workloads():
        for container in containers(workload):
            known = {variable["name"] for variable in container.get("env", [])}
            for argument in container.get("args", []):
                for variable in re.findall(r"\$\((\w+)\)", argument):
                    if variable not in known:
                        problems.append(workload.problem(f"{argument}: no variable {variable}"))
                match = re.search(r"=(?:\$\(POD_NAME\)\.)?([\w-]+)\.([\w-]+)\.svc:(\d+)$", argument)
                if match is None:
                    if ".svc" in argument:
                        problems.append(workload.problem(f"{argument}: not SERVICE.NAMESPACE.svc:PORT"))
                    continue
                service = bundle.find("Service", match[1])
                if service is None or match[2] != namespace:
                    problems.append(workload.problem(f"{argument}: no such Service"))
                elif int(match[3]) not in [port["port"] for port in service.spec["ports"]]:
                    problems.append(workload.problem(f"{argument}: the Service has no such port"))
                elif "$(POD_NAME)" in argument and workload.spec.get("serviceName") != match[1]:
                    problems.append(workload.problem(f"{argument}: pods have no name in that Service"))
    return problems


def check_flags(bundle, flags):
    """`flags`: program -> names of the flags it defines."""
    problems = []
    for workload in bundle.workloads():
        for container in containers(workload):
            program = (container.get("command") or ["?"])[0]
            if program not in flags:
                problems.append(workload.problem(f"runs {program}, which is no program of ours"))
                continue
            for name in flags_of(container):
                if name not in flags[program]:
                    problems.append(workload.problem(f"{program} has no flag --{name}"))
    return problems


# ------------------------------------------------------------------------------------ references


def check_volumes(bundle):
    problems = []
    for workload in bundle.workloads():
        spec = workload.template["spec"]
        volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
        claims = {c["metadata"]["name"] for c in workload.spec.get("volumeClaimTemplates", [])}
        mounts = [mount for c in containers(workload) for mount in c.get("volumeMounts", [])]
        for mount in mounts:
            if mount["name"] not in volumes.keys() | claims:
                problems.append(workload.problem(f"mounts {mount['name']}, which is no volume"))
        for name in sorted((volumes.keys() | claims) - {mount["name"] for mount in mounts}):
            problems.append(workload.problem(f"volume {name} is mounted nowhere"))
        for name, volume in volumes.items():
            for kind, key, field in (
                ("ConfigMap", "configMap", "name"),
                ("Secret", "secret", "secretName"),
                ("PersistentVolumeClaim", "persistentVolumeClaim", "claimName"),
            ):
                if key in volume and bundle.find(kind, volume[key].get(field)) is None:
                    problems.append(workload.problem(f"volume {name}: no {kind} of that name"))
        for container in containers(workload):
            problems += check_writable(workload, container)
    return problems


def check_writable(workload, container):
    """The root file system is read-only: what a program writes must lie on a volume."""
    writable = [
        mount["mountPath"]
        for mount in container.get("volumeMounts", [])
        if not mount.get("readOnly", False)
    ]
    problems = [] if "/tmp" in writable else [workload.problem("has no writable /tmp")]
    for flag in ("store", "data_dir"):
        path = flags_of(container).get(flag)
        if path and not any((path + "/").startswith(mount + "/") for mount in writable):
            problems.append(workload.problem(f"--{flag}={path} is not on a writable volume"))
    return problems


def check_service_accounts(bundle):
    problems = []
    for account in bundle.of("ServiceAccount"):
        if account.body.get("automountServiceAccountToken") is not False:
            problems.append(account.problem("automountServiceAccountToken must be false"))
    for workload in bundle.workloads():
        spec = workload.template["spec"]
        if bundle.find("ServiceAccount", spec.get("serviceAccountName")) is None:
            problems.append(workload.problem("serviceAccountName names no ServiceAccount"))
        if spec.get("automountServiceAccountToken") is not False:
            problems.append(workload.problem("automountServiceAccountToken must be false"))
    return problems


# --------------------------------------------------------------------------------------- manners

SUFFIXES = {"m": 1e-3, "": 1, "k": 1e3, "M": 1e6, "G": 1e9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


def quantity(text):
    """'250m' -> 0.25; None for what is no quantity."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(m|k|M|G|Ki|Mi|Gi)?", str(text))
    return float(match[1]) * SUFFIXES[match[2] or ""] if match else None


def check_resources(bundle):
    problems = []
    for workload in bundle.workloads():
        for container in containers(workload):
            given = container.get("resources", {})
            for name in ("cpu", "memory"):
                asked = quantity(given.get("requests", {}).get(name))
                limit = quantity(given.get("limits", {}).get(name))
                if asked is None or limit is None:
                    problems.append(workload.problem(f"needs a {name} request and a {name} limit"))
                elif asked > limit:
                    problems.append(workload.problem(f"asks for more {name} than its limit"))
            threads = flags_of(container).get("threads")
            cores = quantity(given.get("limits", {}).get("cpu"))
            if threads is not None and cores is not None and int(threads) > cores:
                problems.append(workload.problem(f"--threads={threads} on {cores:g} cores"))
    return problems


RESTRICTED_VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim",
    "projected", "secret",
}  # fmt: skip


def check_restricted(bundle):
    """The restricted pod security profile, and a read-only root file system on top of it."""
    problems = []
    for workload in bundle.workloads():
        spec = workload.template["spec"]
        pod = spec.get("securityContext", {})
        for key in ("hostNetwork", "hostPID", "hostIPC"):
            if spec.get(key):
                problems.append(workload.problem(f"{key} is forbidden"))
        for volume in spec.get("volumes", []):
            for kind in sorted(volume.keys() - {"name"} - RESTRICTED_VOLUMES):
                problems.append(workload.problem(f"volume {volume['name']}: {kind} is forbidden"))
        for container in containers(workload):
            own = container.get("securityContext", {})
            both = {**pod, **own}
            wanted = {
                "runAsNonRoot": both.get("runAsNonRoot") is True,
                "runAsUser other than 0": both.get("runAsUser", 0) != 0,
                "seccompProfile RuntimeDefault": both.get("seccompProfile", {}).get("type")
                == "RuntimeDefault",
                "allowPrivilegeEscalation: false": own.get("allowPrivilegeEscalation") is False,
                "readOnlyRootFilesystem: true": own.get("readOnlyRootFilesystem") is True,
                "capabilities.drop: [ALL]": own.get("capabilities", {}).get("drop") == ["ALL"],
                "no added capabilities": not own.get("capabilities", {}).get("add"),
                "no privileged": not own.get("privileged"),
                "no hostPort": not any("hostPort" in port for port in container.get("ports", [])),
            }
            for name, holds in wanted.items():
                if not holds:
                    problems.append(workload.problem(f"{container['name']} needs {name}"))
    return problems


def check_termination(bundle, drain_seconds):
    """`drain_seconds`: how long a daemon drains at most before it exits."""
    problems = []
    for workload in bundle.workloads():
        grace = workload.template["spec"].get("terminationGracePeriodSeconds", 0)
        if grace <= drain_seconds:
            problems.append(workload.problem(f"{grace} s to end, but draining takes {drain_seconds} s"))
    return problems


# ----------------------------------------------------------------------------------- the network


def _components(bundle, selector):
    """The components whose pods a selector without namespace matches."""
    labels = selector.get("matchLabels", {})
    pods = {component(workload): workload.template["metadata"]["labels"]
            for workload in bundle.workloads()}  # fmt: skip
    for name in OUTSIDE_COMPONENTS:
        pods[name] = {"app.kubernetes.io/name": "cadre", COMPONENT: name}
    return {name for name, own in pods.items() if labels.items() <= own.items()}


def _edges(bundle, direction):
    """(policy's component, peer's component, port) that policies of one direction allow."""
    edges, word = set(), "from" if direction == "ingress" else "to"
    for policy in bundle.of("NetworkPolicy"):
        for rule in policy.spec.get(direction, []):
            ports = [port["port"] for port in rule.get("ports", [])] or ["any"]
            for peer in rule.get(word, [{"podSelector": {}}]):
                if "namespaceSelector" in peer or "ipBlock" in peer:
                    continue
                for own in _components(bundle, policy.spec["podSelector"]):
                    for other in _components(bundle, peer["podSelector"]):
                        edges |= {(own, other, port) for port in ports}
    return edges


def check_network(bundle):
    problems = []
    policies = bundle.of("NetworkPolicy")
    if not any(
        policy.spec["podSelector"] == {}
        and set(policy.spec["policyTypes"]) == {"Ingress", "Egress"}
        and not policy.spec.get("ingress")
        and not policy.spec.get("egress")
        for policy in policies
    ):
        problems.append("network: no policy denies by default")
    for policy in policies:
        if not _components(bundle, policy.spec["podSelector"]):
            problems.append(policy.problem("selects no pod"))
        for direction in ("ingress", "egress"):
            if policy.spec.get(direction) and direction.title() not in policy.spec["policyTypes"]:
                problems.append(policy.problem(f"has {direction} rules but not the policy type"))
    if not any(
        {("UDP", 53), ("TCP", 53)} <= {(p.get("protocol"), p["port"]) for p in rule.get("ports", [])}
        for policy in policies
        if policy.spec["podSelector"] == {}
        for rule in policy.spec.get("egress", [])
    ):
        problems.append("network: no policy lets every pod ask the cluster's DNS")
    out = _edges(bundle, "egress")
    into = {(source, target, port) for target, source, port in _edges(bundle, "ingress")}
    for name, found in (("egress", out), ("ingress", into)):
        for source, target, port in sorted(EDGES - found, key=str):
            problems.append(f"network: no {name} from {source} to {target}:{port}")
        for source, target, port in sorted(found - EDGES, key=str):
            problems.append(f"network: {name} from {source} to {target}:{port} is not needed")
    return problems


def check_edges(bundle):
    """EDGES must say what the manifests say: every port in it is one that the target listens on."""
    listens = {
        (component(workload), port)
        for workload in bundle.workloads()
        for container in containers(workload)
        for port in port_names(container).values()
    }
    reached = {(target, port) for _, target, port in EDGES if port != NCCL_PORT}
    return [f"network: nobody may reach {where}" for where in sorted(listens - reached)] + [
        f"network: {where} is no port" for where in sorted(reached - listens)
    ]


def check(bundle, flags, drain_seconds):
    """Everything. See check_flags and check_termination for the parameters."""
    problems = check_schema(bundle)
    if problems:
        # The other checks rely on the shape.
        return problems
    for step in (
        check_kustomization,
        check_images,
        check_names,
        check_selectors,
        check_stateful_sets,
        check_jobs,
        check_ports,
        check_probes,
        check_addresses,
        check_volumes,
        check_service_accounts,
        check_resources,
        check_restricted,
        check_network,
        check_edges,
    ):
        problems += step(bundle)
    return problems + check_flags(bundle, flags) + check_termination(bundle, drain_seconds)
