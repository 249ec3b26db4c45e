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
{{- if ne $component "coordinator" }}{{ $_ := set .set.spec "replicas" $own.replicas }}{{ end -}}
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
{{- with $own.storage -}}
{{- $_ := set (index $.set.spec.volumeClaimTemplates 0).spec.resources.requests "storage" . -}}
{{- end -}}
{{- if and $values.checkpoints.enabled (ne $component "coordinator") -}}
{{- $_ := set $container "args" (append $container.args "--checkpoint-root=/checkpoints") -}}
{{- $_ := set $container "volumeMounts" (append $container.volumeMounts (dict "name" "checkpoints" "mountPath" "/checkpoints")) -}}
{{- $claim := dict "claimName" "cadre-checkpoints" -}}
{{- $_ := set $pod "volumes" (append $pod.volumes (dict "name" "checkpoints" "persistentVolumeClaim" $claim)) -}}
{{- end -}}
{{- $_ := set $container "args" (concat $container.args $own.args) -}}
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
