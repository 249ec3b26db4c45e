{{- /* The object with the names and labels of workers on GPUs, as JSON. */ -}}
{{- define "cadre.renameForGpu" -}}
{{- $text := toJson . -}}
{{- $text = replace "\"cadre-worker\"" "\"cadre-worker-gpu\"" $text -}}
{{- $text = replace "[\"cadre-worker-gpu\"]" "[\"cadre-worker\"]" $text -}}
{{- $text = replace "component\":\"worker\"" "component\":\"worker-gpu\"" $text -}}
{{- replace "$(POD_NAME).cadre-worker:" "$(POD_NAME).cadre-worker-gpu:" $text -}}
{{- end -}}

{{- /* Changes a StatefulSet by the values. Its result is empty. */ -}}
{{- define "cadre.statefulSet" -}}
{{- $values := .root.Values -}}
{{- $component := index .set.spec.template.metadata.labels "app.kubernetes.io/component" -}}
{{- $pod := .set.spec.template.spec -}}
{{- $container := index $pod.containers 0 -}}
{{- $tag := $values.image.tag | default .root.Chart.AppVersion -}}
{{- if eq $component "worker-gpu" }}{{ $tag = printf "%s-cuda" $tag }}{{ end -}}
{{- $repository := hasPrefix "worker" $component | ternary (printf "%s-worker" $values.image.repository) $values.image.repository -}}
{{- $_ := set $container "image" (printf "%s:%s" $repository $tag) -}}
{{- $own := $values.coordinator -}}
{{- if eq $component "aggregator" }}{{ $own = $values.aggregators }}{{ end -}}
{{- if hasPrefix "worker" $component }}
{{- $own = $values.workers -}}
{{- include "cadre.workers" (dict "values" $values "container" $container "pod" $pod) -}}
{{- end -}}
{{- $_ := set .set.spec "replicas" $own.replicas -}}
{{- if $values.coordinator.database.secret -}}
{{- $change := ternary "cadre.sharedStore" "cadre.coordinators" (eq $component "coordinator") -}}
{{- include $change (dict "root" .root "spec" .set.spec "container" $container "pod" $pod) -}}
{{- end -}}
{{- if eq $component "aggregator" -}}
{{- $sources := list -}}
{{- range $i := until (int $own.replicas) -}}
{{- $name := printf "cadre-aggregator-%d" $i -}}
{{- $items := list -}}
{{- range $key := list "ca.crt" "tls.crt" "tls.key" -}}
{{- $items = append $items (dict "key" $key "path" (printf "%s/%s" $name $key)) -}}
{{- end -}}
{{- $sources = append $sources (dict "secret" (dict "name" (printf "%s-tls" $name) "items" $items)) -}}
{{- end -}}
{{- range $pod.volumes }}{{ if eq .name "tls" }}{{ $_ := set .projected "sources" $sources }}{{ end }}{{ end -}}
{{- end -}}
{{- with $own.resources }}{{ $_ := set $container "resources" . }}{{ end -}}
{{- if $.set.spec.volumeClaimTemplates -}}
{{- $_ := set (index $.set.spec.volumeClaimTemplates 0).spec.resources.requests "storage" $own.storage -}}
{{- end -}}
{{- if and $values.checkpoints.enabled (ne $component "coordinator") -}}
{{- $_ := set $container "args" (append $container.args "--checkpoint-root=/checkpoints") -}}
{{- $_ := set $container "volumeMounts" (append $container.volumeMounts (dict "name" "checkpoints" "mountPath" "/checkpoints")) -}}
{{- $claim := dict "claimName" "cadre-checkpoints" -}}
{{- $_ := set $pod "volumes" (append $pod.volumes (dict "name" "checkpoints" "persistentVolumeClaim" $claim)) -}}
{{- end -}}
{{- $_ := set $container "args" (concat $container.args $own.args) -}}
{{- end -}}

{{- /* Makes members connect to the pods of several coordinators. */ -}}
{{- define "cadre.coordinators" -}}
{{- $hosts := list -}}
{{- range $i := until (int .root.Values.coordinator.replicas) -}}
{{- $hosts = append $hosts (printf "cadre-coordinator-%d.cadre-coordinator-headless:7000" $i) -}}
{{- end -}}
{{- $args := list -}}
{{- range .container.args -}}
{{- $args = append $args (hasPrefix "--coordinator=" . | ternary (printf "--coordinator=%s" (join "," $hosts)) .) -}}
{{- end -}}
{{- $_ := set .container "args" $args -}}
{{- end -}}

{{- /*
Changes the coordinator as the component standby-coordinators does, with the values of its patch.
*/ -}}
{{- define "cadre.sharedStore" -}}
{{- $text := .root.Files.Get "files/components/standby-coordinators/coordinator.yaml" -}}
{{- $text = replace "cadre-database" .root.Values.coordinator.database.secret $text -}}
{{- $new := dict -}}
{{- range fromYamlArray $text -}}
{{- if ne .op "test" }}{{ $_ := set $new .path (get . "value") }}{{ end -}}
{{- end -}}
{{- $pod := "/spec/template/spec" -}}
{{- $main := printf "%s/containers/0" $pod -}}
{{- $_ := set .spec "podManagementPolicy" (get $new "/spec/podManagementPolicy") -}}
{{- $_ := unset .spec "volumeClaimTemplates" -}}
{{- $_ := set .pod "topologySpreadConstraints" (get $new (printf "%s/topologySpreadConstraints" $pod)) -}}
{{- $_ := set (index .pod.volumes 0).emptyDir "sizeLimit" (get $new (printf "%s/volumes/0/emptyDir/sizeLimit" $pod)) -}}
{{- $_ := set .pod "volumes" (append .pod.volumes (get $new (printf "%s/volumes/-" $pod))) -}}
{{- $_ := set .container "env" (get $new (printf "%s/env" $main)) -}}
{{- $_ := set .container.readinessProbe.grpc "service" (get $new (printf "%s/readinessProbe/grpc/service" $main)) -}}
{{- $_ := set .container "volumeMounts" (append (rest .container.volumeMounts) (get $new (printf "%s/volumeMounts/-" $main))) -}}
{{- $store := list (get $new (printf "%s/args/1" $main)) (get $new (printf "%s/args/2" $main)) -}}
{{- $_ := set .container "args" (concat (slice .container.args 0 1) $store (slice .container.args 2)) -}}
{{- end -}}

{{- /* Changes the container of the workers and its pod, with a GPU as in deploy/kubernetes/gpu. */ -}}
{{- define "cadre.workers" -}}
{{- $workers := .values.workers -}}
{{- $args := list -}}
{{- range .container.args -}}
{{- $args = append $args (hasPrefix "--threads=" . | ternary (printf "--threads=%d" (int $workers.threads)) .) -}}
{{- end -}}
{{- $cores := toString $workers.threads -}}
{{- $requests := dict "cpu" $cores "memory" $workers.memory.request -}}
{{- $limits := dict "cpu" $cores "memory" $workers.memory.limit -}}
{{- if $workers.gpu -}}
{{- $args = append $args "--device=cuda" -}}
{{- $_ := set $limits "nvidia.com/gpu" "1" -}}
{{- $_ := set (index .pod.volumes 0).emptyDir "sizeLimit" "1Gi" -}}
{{- $_ := set .pod "volumes" (append .pod.volumes (dict "name" "shm" "emptyDir" (dict "medium" "Memory" "sizeLimit" "2Gi"))) -}}
{{- $_ := set .container "volumeMounts" (append .container.volumeMounts (dict "name" "shm" "mountPath" "/dev/shm")) -}}
{{- end -}}
{{- $_ := set .container "args" $args -}}
{{- $_ := set .container "resources" (dict "requests" $requests "limits" $limits) -}}
{{- $_ := set .pod "volumes" (concat .pod.volumes $workers.volumes) -}}
{{- $_ := set .container "volumeMounts" (concat .container.volumeMounts $workers.volumeMounts) -}}
{{- end -}}
