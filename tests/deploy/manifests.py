"""Rules for the Kubernetes objects that `kubectl kustomize` renders. They need no cluster.

    objects = render(tools.find("bin/kubectl"), pathlib.Path("deploy/kubernetes"))
    problems = check(objects, packages, flags, drain_seconds)

A problem is a line that names the object and the rule. kubectl rejects duplicate names and sets the namespace;
check_schema() covers what the API server rejects in strict mode; the other functions cover what only this project
requires.
"""

import functools
import json
import re
import subprocess

import custom_resources
import jsonschema
import yaml

# Every supported API, from the oldest one that has all fields in use.
API_VERSIONS = ("1.31", "1.32", "1.33", "1.34", "1.35", "1.36", "1.37")
COMPONENT = "app.kubernetes.io/component"
ENFORCE = "pod-security.kubernetes.io/enforce"
# Exit codes of a worker that a restart cannot cure: invalid flags, refused by the coordinator.
PERMANENT_FAILURES = {2, 64}
# The component of pods in which a user runs the `cadre` command.
CONTROL = "control"
# NCCL listens on ports that the kernel selects; this is the first of them.
NCCL_PORT = 32768
# (component that connects, component that accepts, port).
EDGES = {
    ("aggregator", "coordinator", 7000),
    (CONTROL, "coordinator", 7000),
}
# Additional edges, if there are workers of this component.
WORKER_EDGES = {
    "worker": {
        ("worker", "coordinator", 7000),
        ("worker", "aggregator", 7001),
        ("worker", "worker", 7002),
    },
    "worker-gpu": {
        ("worker-gpu", "coordinator", 7000),
        ("worker-gpu", "aggregator", 7001),
        ("worker-gpu", "worker-gpu", 7002),
        ("worker-gpu", "worker-gpu", NCCL_PORT),
    },
}


def render(kubectl, folder):
    """The objects that `kubectl apply -k FOLDER` would send."""
    command = [kubectl, "kustomize", folder]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if result.returncode != 0:
        raise ValueError(result.stderr)
    return parse(result.stdout)


def parse(text):
    """The objects in the documents of a YAML file."""
    return [item for item in yaml.safe_load_all(text) if item]


def with_jobs(objects):
    """The objects, with the Jobs that the JobSets among them would create."""
    jobs = []
    for item in of_kind(objects, "JobSet"):
        for job in item["spec"]["replicatedJobs"]:
            name = f"{item['metadata']['name']}-{job.get('name')}-0"
            metadata = {"name": name, "namespace": item["metadata"].get("namespace")}
            jobs.append({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata} | job["template"])
    return objects + jobs


def label(item):
    return f"{item['kind']}/{item['metadata']['name']}"


def of_kind(objects, *kinds):
    return [item for item in objects if item["kind"] in kinds]


def find(objects, kind, name):
    return next((i for i in of_kind(objects, kind) if i["metadata"]["name"] == name), None)


def workloads(objects):
    return of_kind(objects, "StatefulSet", "Job")


def template(workload):
    return workload["spec"]["template"]


def containers(workload):
    spec = template(workload)["spec"]
    return spec.get("initContainers", []) + spec["containers"]


def pods(objects):
    """(workload, container) pairs."""
    return [(w, c) for w in workloads(objects) for c in containers(w)]


def component(workload):
    return template(workload)["metadata"]["labels"].get(COMPONENT)


def selected(objects, labels):
    """The workloads whose pods carry all the labels."""
    return [
        w for w in workloads(objects) if labels.items() <= template(w)["metadata"]["labels"].items()
    ]


def ports(container):
    return {port["name"]: port["containerPort"] for port in container.get("ports", [])}


def flags_of(container):
    """{'listen': '0.0.0.0:7000', 'insecure': '', ...}"""
    pairs = (argument[2:].partition("=") for argument in container.get("args", []))
    return {name.replace("-", "_"): value for name, _, value in pairs}


@functools.cache
def definitions(folder):
    return read_schema(folder / "_definitions.json")["$defs"]


def read_schema(path):
    """The schema with its references into _definitions.json made local."""
    schema = json.loads(re.sub(r'"[^"]*_definitions\.json#', '"#', path.read_text()))
    schema.pop("$id", None)
    return schema


custom_package = functools.cache(custom_resources.Package)


@functools.cache
def validator(packages, version, api_version, kind):
    """A strict validator for an object in Kubernetes `version`; None where the API has no such kind."""
    folder = packages / f"kubernetes_validate/kubernetes-json-schema/v{version}.0-local-strict"
    if api_version in custom_resources.SOURCES:
        schema = custom_package(packages, api_version).schema(kind, definitions(folder).keys())
    else:
        group, _, group_version = api_version.rpartition("/")
        parts = (kind.lower(), group.partition(".")[0], group_version)
        path = folder / ("-".join(part for part in parts if part) + ".json")
        schema = read_schema(path) if path.exists() else None
    if schema is None:
        return None
    required = {"apiVersion", "kind", "metadata", *schema.get("required", [])}
    return jsonschema.Draft202012Validator({**schema, "required": sorted(required), "$defs": definitions(folder)})


def check_schema(objects, packages, versions):
    """`packages`: the folder with the Python packages that requirements.txt pins."""
    for version in versions:
        for item in objects:
            checker = validator(packages, version, item["apiVersion"], item["kind"])
            if checker is None:
                yield f"{label(item)}: {version}: no {item['apiVersion']} {item['kind']}"
                continue
            for error in checker.iter_errors(item):
                where = ".".join(str(part) for part in error.absolute_path)
                yield f"{label(item)}: {version}: at '{where}': {error.message}"


def check_names(objects):
    namespaces = list(of_kind(objects, "Namespace"))
    if not namespaces:
        yield "there is no Namespace"
    for namespace in namespaces:
        if namespace["metadata"].get("labels", {}).get(ENFORCE) != "restricted":
            yield f"the namespace needs the label {ENFORCE}: restricted"
    for workload, container in pods(objects):
        tag = container["image"].partition(":")[2]
        if tag in ("", "latest"):
            yield f"{label(workload)}: image {container['image']} needs a tag other than latest"


def check_selectors(objects):
    for workload in of_kind(objects, "StatefulSet"):
        if workload not in selected(objects, workload["spec"]["selector"]["matchLabels"]):
            yield f"{label(workload)}: does not select its own pods"
        service = find(objects, "Service", workload["spec"]["serviceName"])
        if service is None or service["spec"].get("clusterIP") != "None":
            yield f"{label(workload)}: serviceName is not a headless Service"
        elif workload not in selected(objects, service["spec"]["selector"]):
            yield f"{label(workload)}: {label(service)} does not select its pods"
    covered = []
    for budget in of_kind(objects, "PodDisruptionBudget"):
        found = selected(objects, budget["spec"]["selector"]["matchLabels"])
        covered += found
        if len(found) != 1:
            yield f"{label(budget)}: must select the pods of exactly one workload"
    for workload in of_kind(objects, "StatefulSet"):
        if workload not in covered:
            yield f"{label(workload)}: has no PodDisruptionBudget"


def check_jobs(objects):
    for job in of_kind(objects, "Job"):
        spec, name = job["spec"], label(job)
        rules = spec.get("podFailurePolicy", {}).get("rules", [])
        ignored = [c["type"] for r in rules if r["action"] == "Ignore" for c in r["onPodConditions"]]
        fatal = [r["onExitCodes"] for r in rules if r["action"] == "FailJob"]
        if "DisruptionTarget" not in ignored:
            yield f"{name}: must ignore DisruptionTarget"
        if [(set(f["values"]), f["containerName"]) for f in fatal] != [(PERMANENT_FAILURES, "worker")]:
            yield f"{name}: must fail on the exit codes {PERMANENT_FAILURES} of the worker"
        if spec.get("completionMode") != "Indexed" or spec["completions"] != spec["parallelism"]:
            yield f"{name}: must be Indexed, with as many completions as parallel pods"
        if template(job)["spec"].get("restartPolicy") != "Never":
            yield f"{name}: podFailurePolicy needs restartPolicy: Never"


def check_ports(objects):
    for service in of_kind(objects, "Service"):
        targets = selected(objects, service["spec"]["selector"])
        if not targets:
            yield f"{label(service)}: selects no pod"
        for workload in targets:
            known = {name for c in containers(workload) for name in ports(c)}
            for port in service["spec"]["ports"]:
                if port["targetPort"] not in known:
                    yield f"{label(service)}: targetPort {port['targetPort']} does not exist"
    for workload, container in pods(objects):
        own = ports(container)
        listen = int(flags_of(container)["listen"].rpartition(":")[2])
        if listen not in own.values():
            yield f"{label(workload)}: listens on {listen}, which no port declares"
        health = flags_of(container).get("health_port")
        if own.get("health") != (health and int(health)):
            yield f"{label(workload)}: --health-port is not the port health"
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            if container.get(probe, {}).get("grpc", {}).get("port") != own.get("health"):
                yield f"{label(workload)}: {probe} does not query the health port"


def check_addresses(objects):
    """[POD.]SERVICE:PORT in a flag must lead to a headless Service of the same namespace that has the port."""
    for workload, container in pods(objects):
        variables = {variable["name"] for variable in container.get("env", [])}
        if workload["spec"].get("completionMode") == "Indexed":
            variables.add("JOB_COMPLETION_INDEX")
        for argument in container["args"]:
            for name in set(re.findall(r"\$\((\w+)\)", argument)) - variables:
                yield f"{label(workload)}: {argument}: undefined variable {name}"
            if not argument.startswith(("--coordinator=", "--advertise=")):
                continue
            if workload["kind"] == "Job" and argument.startswith("--advertise="):
                continue  # JobSet makes the Service
            for address in argument.partition("=")[2].split(","):
                problem = address_problem(objects, workload, address)
                if problem:
                    yield f"{label(workload)}: {argument}: {problem}"


def owner_of(objects, pod, workload):
    """The StatefulSet that has this pod; `workload` for a pod that names itself."""
    if pod == "$(POD_NAME)":
        return workload
    name, _, index = pod.rpartition("-")
    owner = find(objects, "StatefulSet", name)
    return owner if owner and int(index) < owner["spec"]["replicas"] else None


def address_problem(objects, workload, address):
    match = re.fullmatch(r"(?:(\$\(POD_NAME\)|[\w-]+-\d+)\.)?([\w-]+):(\d+)", address)
    service = match and find(objects, "Service", match[2])
    if not service:
        return "no such Service"
    if int(match[3]) not in [port["port"] for port in service["spec"]["ports"]]:
        return "the Service has no such port"
    if match[1]:
        owner = owner_of(objects, match[1], workload)
        if owner is None:
            return f"there is no pod {match[1]}"
        if owner["spec"].get("serviceName") != match[2]:
            return "the Service does not name its pods"
    if service["spec"].get("clusterIP") != "None":
        return "unready pods cannot be reached by this Service"
    return None


def check_programs(objects, flags, drain_seconds):
    """`flags`: program -> its flags. `drain_seconds`: the longest time that a daemon needs to drain."""
    for workload, container in pods(objects):
        program, given = container["command"][0], flags_of(container)
        for name in given.keys() - flags.get(program, set()):
            yield f"{label(workload)}: {program} has no flag --{name}"
        variables = {variable["name"] for variable in container.get("env", [])}
        for name in filter(None, given.get("fromenv", "").split(",")):
            if name not in flags.get(program, set()):
                yield f"{label(workload)}: {program} has no flag --{name}, which --fromenv names"
            elif f"FLAGS_{name}" not in variables:
                yield f"{label(workload)}: --fromenv={name} needs the variable FLAGS_{name}"
        if "insecure" in given or not given.get("tls"):
            yield f"{label(workload)}: {program} must use --tls"
        mounts = {mount["mountPath"]: mount for mount in container.get("volumeMounts", [])}
        tls = given.get("tls", "").removesuffix("/$(POD_NAME)")
        # The kubelet does not update files that are mounted by subPath.
        if not mounts.get(tls, {}).get("readOnly") or "subPath" in mounts[tls]:
            yield f"{label(workload)}: {tls} is not a read-only mount of a whole volume"
        spec = template(workload)["spec"]
        if spec.get("terminationGracePeriodSeconds", 0) <= drain_seconds:
            yield f"{label(workload)}: draining takes up to {drain_seconds} s"
        # The root file system is read-only.
        writable = [mount["mountPath"] for mount in container.get("volumeMounts", [])]
        for path in ("/tmp", given.get("store"), given.get("data_dir")):
            if path and not any((path + "/").startswith(mount + "/") for mount in writable):
                yield f"{label(workload)}: {path} is not on a writable volume"


def check_resources(objects):
    for workload, container in pods(objects):
        given = container.get("resources", {})
        for name in ("cpu", "memory"):
            if not all(name in given.get(kind, {}) for kind in ("requests", "limits")):
                yield f"{label(workload)}: needs a request and a limit of {name}"
        cpu = str(given.get("limits", {}).get("cpu", 0))
        cores = int(cpu[:-1]) / 1000 if cpu.endswith("m") else float(cpu)
        if int(flags_of(container).get("threads", 1)) > max(cores, 1):
            yield f"{label(workload)}: more threads than the limit of cpu"


# The restricted pod security profile, a read-only root file system and no API token.
POD_SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": 10001,
    "runAsGroup": 10001,
    "fsGroup": 10001,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
VOLUMES = {"name", "configMap", "emptyDir", "persistentVolumeClaim", "projected", "secret"}


def check_security(objects):
    for account in of_kind(objects, "ServiceAccount"):
        if account.get("automountServiceAccountToken") is not False:
            yield f"{label(account)}: automountServiceAccountToken must be false"
    for workload, container in pods(objects):
        spec = template(workload)["spec"]
        rules = {
            "a ServiceAccount": find(objects, "ServiceAccount", spec.get("serviceAccountName")),
            "automountServiceAccountToken: false": not spec.get("automountServiceAccountToken", 1),
            "no host namespaces": not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys(),
            "only volumes of the restricted profile": all(
                volume.keys() <= VOLUMES for volume in spec.get("volumes", [])
            ),
            "the security context of pods": spec.get("securityContext") == POD_SECURITY,
            "the security context of containers": container.get("securityContext")
            == CONTAINER_SECURITY,
            "no hostPort": not any("hostPort" in port for port in container.get("ports", [])),
        }
        for rule, holds in rules.items():
            if not holds:
                yield f"{label(workload)}: needs {rule}"


def components(objects, selector):
    """The components whose pods a selector matches."""
    labels = selector.get("matchLabels", {})
    found = {component(workload) for workload in selected(objects, labels)}
    control = {"app.kubernetes.io/name": "cadre", COMPONENT: CONTROL}
    return found | ({CONTROL} if labels.items() <= control.items() else set())


def edges(objects, direction):
    """(component of the policy, component of the peer, port) that the policies of a direction allow."""
    return {
        (own, other, port["port"])
        for policy in of_kind(objects, "NetworkPolicy")
        if direction.title() in policy["spec"].get("policyTypes", [])
        for rule in policy["spec"].get(direction, [])
        for peer in rule.get("from" if direction == "ingress" else "to", [])
        if peer.keys() == {"podSelector"}  # not DNS, not Prometheus
        for port in rule["ports"]
        for own in components(objects, policy["spec"]["podSelector"])
        for other in components(objects, peer["podSelector"])
    }


def shares_store(workload):
    """Whether the pods of a workload are coordinators that share a database."""
    return "store" in flags_of(containers(workload)[0]).get("fromenv", "").split(",")


def check_peers(objects):
    """A rule without peers allows all of them: coordinators may connect to their database, wherever it is."""
    for policy in of_kind(objects, "NetworkPolicy"):
        own = components(objects, policy["spec"]["podSelector"])
        database = own == {"coordinator"} and any(shares_store(w) for w in workloads(objects))
        for direction, peers in (("ingress", "from"), ("egress", "to")):
            for rule in policy["spec"].get(direction, []):
                if not rule.get(peers) and not (direction == "egress" and database and rule.get("ports")):
                    yield f"{label(policy)}: a rule for {direction} allows all peers"


def check_network(objects):
    policies = [policy["spec"] for policy in of_kind(objects, "NetworkPolicy")]
    if {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]} not in policies:
        yield "network: no policy denies by default"
    if find(objects, "NetworkPolicy", "allow-dns") is None:
        yield "network: no policy allows DNS"
    for policy in of_kind(objects, "NetworkPolicy"):
        if not components(objects, policy["spec"]["podSelector"]):
            yield f"{label(policy)}: selects no pod"
    expected = EDGES.union(*(WORKER_EDGES.get(component(w), set()) for w in workloads(objects)))
    egress = edges(objects, "egress")
    ingress = {(source, target, port) for target, source, port in edges(objects, "ingress")}
    for direction, found in (("egress", egress), ("ingress", ingress)):
        for source, target, port in expected ^ found:
            verb = "is not needed" if (source, target, port) in found else "is missing"
            yield f"network: {direction} from {source} to {target}:{port} {verb}"
    # The kubelet reaches the health port from the pod's node, without a policy; behaviour.py checks metrics.
    declared = {
        (component(w), port)
        for w, c in pods(objects)
        for name, port in ports(c).items()
        if name not in ("health", "metrics")
    }
    reached = {(target, port) for _, target, port in expected if port != NCCL_PORT}
    for target, port in declared ^ reached:
        yield f"network: {target}:{port} is not both declared and reachable"


def check(objects, packages, flags, drain_seconds, versions=API_VERSIONS):
    """All problems, sorted. The other checks rely on the shape that the schemas ensure."""
    objects = with_jobs(objects)
    steps = (
        check_names,
        check_selectors,
        check_jobs,
        check_ports,
        check_addresses,
        check_resources,
        check_security,
        check_network,
        check_peers,
    )
    problems = list(check_schema(objects, packages, versions))
    if not problems:
        problems = [problem for step in steps for problem in step(objects)]
        problems += check_programs(objects, flags, drain_seconds)
    return sorted(problems)
