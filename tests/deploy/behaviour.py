"""Rules for what the objects do on a cluster: which pods return, what an update may change, which names resolve.

    problems = check(objects, drained, alerts, readiness) + check_update(old, new)

They apply the documented rules of the Kubernetes controllers to the rendered objects; no cluster is needed.
"""

import re

import manifests
from manifests import component, containers, flags_of, label, of_kind, pods, template

# Fields of a StatefulSet's spec that an update may change; a Job's template and completions never change.
MUTABLE = {
    "StatefulSet": {
        "replicas",
        "template",
        "updateStrategy",
        "minReadySeconds",
        "ordinals",
        "persistentVolumeClaimRetentionPolicy",
    },
    "Job": {"parallelism", "suspend", "activeDeadlineSeconds", "ttlSecondsAfterFinished"},
}


def returns(workload, exit_code, evicted):
    """Whether a pod whose main container has ended with this code is replaced."""
    if workload["kind"] == "StatefulSet":
        return True
    spec = workload["spec"]
    if exit_code == 0:
        return False  # its index is completed, also if the pod was being deleted
    for rule in spec.get("podFailurePolicy", {}).get("rules", []):
        conditions = [c["type"] for c in rule.get("onPodConditions", [])]
        codes = rule.get("onExitCodes", {})
        listed = exit_code in codes.get("values", [])
        matches = (evicted and "DisruptionTarget" in conditions) or (
            bool(codes) and listed == (codes["operator"] == "In")
        )
        if matches:
            return rule["action"] in ("Ignore", "Count") and (
                rule["action"] == "Ignore" or spec.get("backoffLimit", 6) > 0
            )
    return spec.get("backoffLimit", 6) > 0


def workers(objects):
    return [w for w in manifests.workloads(objects) if component(w).startswith("worker")]


def check_returning(objects, drained):
    """`drained`: the exit code of a worker after SIGTERM."""
    if not workers(objects):
        yield "there are no workers"
    for workload in workers(objects):
        for evicted in (True, False):
            if not returns(workload, drained, evicted):
                how = "evicted" if evicted else "drained"
                yield f"{label(workload)}: the pod of a worker that was {how} does not return"
        endless = "exit_when_done" not in flags_of(containers(workload)[0])
        if endless and workload["kind"] == "Job":
            yield f"{label(workload)}: a Job needs --exit-when-done, because its work must end"
        if not endless and workload["kind"] != "Job":
            yield f"{label(workload)}: with --exit-when-done, its pods start again after the run"
        if not endless and returns(workload, 0, False):
            yield f"{label(workload)}: a completed worker is started again"


def check_job_sets(objects):
    """JobSet names the pods of its jobs JOBSET-JOB-REPLICA-INDEX.SUBDOMAIN."""
    for job_set in of_kind(objects, "JobSet"):
        name, spec = job_set["metadata"]["name"], job_set["spec"]
        network = spec.get("network", {})
        if not network.get("enableDNSHostnames"):
            yield f"{label(job_set)}: its pods have no names"
        if not network.get("publishNotReadyAddresses", True):
            yield f"{label(job_set)}: leases expire before the pods of a group are ready"
        if spec.get("failurePolicy", {}).get("maxRestarts") != 0:
            yield f"{label(job_set)}: starts a failed run again, whose state is the coordinator's"
        for job in spec["replicatedJobs"]:
            workload = {"kind": "Job", **job["template"]}
            host = f"{name}-{job['name']}-0-$(JOB_COMPLETION_INDEX).{network.get('subdomain', name)}"
            advertised = flags_of(containers(workload)[0]).get("advertise", "").rpartition(":")[0]
            if job.get("replicas", 1) != 1 or advertised != host:
                yield f"{label(job_set)}: --advertise is not the name that JobSet gives the pod, {host}"


def check_start_and_end(objects):
    for workload in of_kind(objects, "StatefulSet"):
        spec, name = workload["spec"], label(workload)
        if spec["replicas"] > 1 and spec.get("podManagementPolicy") != "Parallel":
            yield f"{name}: pods must start in parallel: a missing one must not hold up the others"
        if spec.get("updateStrategy", {}).get("type", "RollingUpdate") != "RollingUpdate":
            yield f"{name}: an update must replace pods without manual deletion"
        if "activeDeadlineSeconds" in template(workload)["spec"]:
            yield f"{name}: activeDeadlineSeconds ends pods of a service"
    for workload, container in pods(objects):
        flags = flags_of(container)
        grace = template(workload)["spec"].get("terminationGracePeriodSeconds", 30)
        if "drain_timeout" in flags and grace <= int(flags["drain_timeout"]):
            yield f"{label(workload)}: --drain-timeout is longer than the grace period"
        command = " ".join(container["command"])
        if re.search(r"\b(sh|bash)\b", command):
            yield f"{label(workload)}: a shell as the first process does not pass on SIGTERM"
        if "preStop" in container.get("lifecycle", {}):
            yield f"{label(workload)}: a preStop hook delays SIGTERM, and the drain with it"
        if component(workload).startswith("worker") and "livenessProbe" in container:
            yield f"{label(workload)}: a probe would end a worker whose group is slow; the lease detects dead ones"


def check_disruptions(objects):
    """At most one pod of a role is evicted at a time, for every size."""
    for budget in of_kind(objects, "PodDisruptionBudget"):
        spec = budget["spec"]
        if spec.get("maxUnavailable") != 1 or "minAvailable" in spec:
            yield f"{label(budget)}: must be maxUnavailable: 1, which follows the number of pods"
        if spec.get("unhealthyPodEvictionPolicy") != "AlwaysAllow":
            yield f"{label(budget)}: an unhealthy pod must not block the drain of its node"
        selected = manifests.selected(objects, spec["selector"]["matchLabels"])
        if any(workload["kind"] == "Job" for workload in selected):
            yield f"{label(budget)}: maxUnavailable needs a workload with a scale, which a Job lacks"


def check_names(objects):
    namespace = {item["metadata"].get("namespace") for item in objects if item["kind"] != "Namespace"}
    namespaces = {item["metadata"]["name"] for item in of_kind(objects, "Namespace")}
    if namespaces and namespace != namespaces:
        yield f"objects are in {sorted(map(str, namespace))}, not only in {sorted(namespaces)}"
    for service in of_kind(objects, "Service"):
        spec = service["spec"]
        headless = spec.get("clusterIP") == "None"
        if headless and not spec.get("publishNotReadyAddresses"):
            yield f"{label(service)}: leases expire before the pods of a moved coordinator are ready"
        if spec.get("ipFamilyPolicy") != "PreferDualStack":
            yield f"{label(service)}: needs ipFamilyPolicy: PreferDualStack"
    for workload, container in pods(objects):
        flags = flags_of(container)
        for flag in ("coordinator", "advertise"):
            value = flags.get(flag, "")
            if any(".svc" in address or address.count(".") > 1 for address in value.split(",")):
                yield f"{label(workload)}: --{flag} names a namespace, so it fails in all others"
            if flag == "advertise" and "_IP)" in value:
                yield f"{label(workload)}: an IPv6 address in --advertise lacks its brackets"
        if not flags["listen"].startswith("[::]:"):
            yield f"{label(workload)}: --listen must accept IPv4 and IPv6: [::]:PORT"


def check_coordinators(objects, readiness):
    """One coordinator has a file, several share a database. `readiness`: the health check of one that may lead."""
    for workload in manifests.workloads(objects):
        if component(workload) != "coordinator":
            continue
        spec, name, container = workload["spec"], label(workload), containers(workload)[0]
        flags = flags_of(container)
        hosts = [f"{workload['metadata']['name']}-{i}.{spec['serviceName']}" for i in range(spec["replicas"])]
        shared = manifests.shares_store(workload)
        if not shared:
            hosts = [spec["serviceName"]]
            if spec["replicas"] != 1:
                yield f"{name}: each coordinator would lead with a store of its own"
        else:
            yield from check_standbys(objects, workload, readiness)
        if "://" in " ".join(container["args"]):
            yield f"{name}: the address of the database, with its password, must not be an argument"
        if shared and flags.get("advertise") != f"$(POD_NAME).{spec['serviceName']}:7000":
            yield f"{name}: --advertise is not the name of the pod"
        addresses = ",".join(f"{host}:7000" for host in hosts)
        for member in manifests.workloads(objects):
            if member is not workload and flags_of(containers(member)[0])["coordinator"] != addresses:
                yield f"{label(member)}: --coordinator must be {addresses}"


def check_aggregators(objects, readiness):
    """An update must not restart the next aggregator before this one has verified its files."""
    for workload in manifests.workloads(objects):
        probes = containers(workload)[0]
        if component(workload) == "aggregator" and probes["readinessProbe"]["grpc"].get("service") != readiness:
            yield f"{label(workload)}: readinessProbe must ask for the service {readiness}"


def check_standbys(objects, workload, readiness):
    spec, name, container = workload["spec"], label(workload), containers(workload)[0]
    sources = {v["name"]: v.get("valueFrom", {}) for v in container["env"]}
    if "secretKeyRef" not in sources.get("FLAGS_store", {}):
        yield f"{name}: the address of the database must come from a Secret"
    if spec.get("volumeClaimTemplates"):
        yield f"{name}: a coordinator with a shared database needs no volume"
    # With the check of the process, an update would go on to the next coordinator before this one could lead.
    if container["readinessProbe"]["grpc"].get("service") != readiness:
        yield f"{name}: readinessProbe must ask for the service {readiness}"
    for probe in ("startupProbe", "livenessProbe"):
        if "service" in container[probe]["grpc"]:
            yield f"{name}: {probe} would end a process that waits for the database"
    constraints = template(workload)["spec"].get("topologySpreadConstraints", [])
    apart = {(c["topologyKey"], c["whenUnsatisfiable"], c.get("nodeTaintsPolicy")) for c in constraints}
    if ("kubernetes.io/hostname", "DoNotSchedule", "Honor") not in apart:
        yield f"{name}: one node may have all coordinators"
    for service in of_kind(objects, "Service"):
        if service["spec"].get("clusterIP") != "None" and workload in manifests.selected(
            objects, service["spec"]["selector"]
        ):
            yield f"{label(service)}: leads to standbys, which refuse calls"
    ports = [
        port["port"]
        for policy in of_kind(objects, "NetworkPolicy")
        if workload in manifests.selected(objects, policy["spec"]["podSelector"].get("matchLabels", {}))
        for rule in policy["spec"].get("egress", [])
        if not rule.get("to")
        for port in rule.get("ports", [])
    ]
    if not ports:
        yield f"{name}: no network policy allows connections to the database"


def check_certificates(objects):
    """Every replica of an aggregator has its own certificate; every Secret is issued."""
    issued = {c["spec"]["secretName"]: c["spec"] for c in of_kind(objects, "Certificate")}
    for workload in manifests.workloads(objects):
        volumes = {v["name"]: v for v in template(workload)["spec"].get("volumes", [])}
        tls = volumes.get("tls", {})
        secrets = [tls["secret"]["secretName"]] if "secret" in tls else []
        for source in tls.get("projected", {}).get("sources", []):
            secrets.append(source["secret"]["name"])
        if component(workload) == "aggregator":
            name = workload["metadata"]["name"]
            wanted = [f"{name}-{i}-tls" for i in range(workload["spec"]["replicas"])]
            if secrets != wanted:
                yield f"{label(workload)}: needs one Secret for each replica: {', '.join(wanted)}"
        for secret in secrets:
            if issued and secret not in issued:
                yield f"{label(workload)}: no Certificate issues {secret}"
    for certificate in of_kind(objects, "Certificate"):
        spec = certificate["spec"]
        for uri in spec.get("uris", []):
            role = re.fullmatch(r"spiffe://cadre/cadre/(coordinator|aggregator|worker)/([\w.-]+)", uri)
            if not role or not {"client auth", "server auth"} <= set(spec["usages"]):
                yield f"{label(certificate)}: {uri} is not an identity of a member"
            elif role[1] == "aggregator" and spec["secretName"] != f"{role[2]}-tls":
                yield f"{label(certificate)}: the identity {role[2]} is not that of the pod"


def check_checkpoints(objects):
    """A path under --checkpoint-root must be the same volume in workers and aggregators, and shared."""
    roots = {}
    for workload, container in pods(objects):
        root = flags_of(container).get("checkpoint_root")
        if component(workload) == "coordinator" or root is None:
            continue
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        volumes = {v["name"]: v for v in template(workload)["spec"]["volumes"]}
        claim = volumes.get(mounts.get(root), {}).get("persistentVolumeClaim", {}).get("claimName")
        roots[label(workload)] = (root, claim)
        found = manifests.find(objects, "PersistentVolumeClaim", claim)
        if found is None or found["spec"]["accessModes"] != ["ReadWriteMany"]:
            yield f"{label(workload)}: {root} is not a volume that many nodes can mount"
    members = [w for w in manifests.workloads(objects) if component(w) != "coordinator"]
    if roots and (len(set(roots.values())) != 1 or len(roots) != len(members)):
        yield "workers and aggregators do not mount the same checkpoints"


def check_gpu(objects):
    for workload in workers(objects):
        if "gpu" not in component(workload):
            continue
        container = containers(workload)[0]
        limits = container["resources"]["limits"]
        if "nvidia.com/gpu" not in limits or not flags_of(container).get("device", "").startswith("cuda"):
            yield f"{label(workload)}: needs a GPU and --device=cuda"
        if "/dev/shm" not in [mount["mountPath"] for mount in container["volumeMounts"]]:
            yield f"{label(workload)}: NCCL needs more shared memory than a pod has by default"


def check_monitoring(objects):
    """Every pod that a PodMonitor selects serves metrics on a port that Prometheus may reach."""
    allowed = {
        (peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"], port["port"])
        for policy in of_kind(objects, "NetworkPolicy")
        for rule in policy["spec"].get("ingress", [])
        for peer in rule.get("from", [])
        if "namespaceSelector" in peer
        for port in rule["ports"]
    }
    for monitor in of_kind(objects, "PodMonitor"):
        selector = monitor["spec"]["selector"]
        pods_of = [
            w
            for w in manifests.selected(objects, selector["matchLabels"])
            if all(component(w) in e["values"] for e in selector.get("matchExpressions", []))
        ]
        if not pods_of:
            yield f"{label(monitor)}: selects no pod"
        for workload in pods_of:
            container = containers(workload)[0]
            for endpoint in monitor["spec"]["podMetricsEndpoints"]:
                port = manifests.ports(container).get(endpoint["port"])
                listens = flags_of(container).get("metrics_listen", "").rpartition(":")[2]
                if port is None:
                    yield f"{label(monitor)}: no pod has the port {endpoint['port']}"
                elif listens != str(port):
                    yield f"{label(workload)}: --metrics-listen is not the port {endpoint['port']}"
                elif ("monitoring", port) not in allowed:
                    yield f"{label(workload)}: Prometheus cannot reach the port {port}"


def check_alerts(objects, alerts):
    """The rules for the Prometheus operator are those of Prometheus."""
    for rules in of_kind(objects, "PrometheusRule"):
        if rules["spec"] != alerts:
            yield f"{label(rules)}: differs from deploy/monitoring/alerts.yaml"


def check(objects, drained, alerts, readiness):
    objects = manifests.with_jobs(objects)
    problems = [
        *check_returning(objects, drained),
        *check_gpu(objects),
        *check_alerts(objects, alerts),
        *check_coordinators(objects, readiness),
        *check_aggregators(objects, readiness),
    ]
    for step in (
        check_job_sets,
        check_start_and_end,
        check_disruptions,
        check_names,
        check_certificates,
        check_checkpoints,
        check_monitoring,
    ):
        problems += step(objects)
    return sorted(problems)


def check_update(old, new):
    """Problems of `kubectl apply` with the new objects, such as those of another release, over the old ones."""
    for item in manifests.workloads(new):
        before = manifests.find(old, item["kind"], item["metadata"]["name"])
        if before is None:
            continue
        for field in sorted(before["spec"].keys() | item["spec"].keys()):
            same = before["spec"].get(field) == item["spec"].get(field)
            if not same and field not in MUTABLE[item["kind"]]:
                yield f"{label(item)}: {field} is immutable"
