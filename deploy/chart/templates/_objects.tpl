{{- define "policysched.labels" -}}
app.kubernetes.io/name: policysched
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* The objects of a file in manifests/, in this release's namespace. */}}
{{- define "policysched.file" }}
{{- $root := .root }}
{{- range regexSplit "(?m)^---$" ($root.Files.Get (printf "manifests/%s.yaml" .name)) -1 }}
{{- $object := fromYaml . }}
{{- if not $object.kind }}{{ fail (printf "manifests: %v" $object) }}{{ end }}
---
{{ include "policysched.object" (dict "object" $object "root" $root) }}
{{- end }}
{{- end }}

{{- define "policysched.object" }}
{{- $object := .object }}
{{- $namespace := .root.Release.Namespace }}
{{- $labels := include "policysched.labels" .root | fromYaml }}
{{- if eq ($object.metadata.namespace | default "") "policysched" }}
{{- $_ := set $object.metadata "namespace" $namespace }}
{{- end }}
{{- range $object.subjects }}
{{- $_ := set . "namespace" $namespace }}
{{- end }}
{{- if eq $object.kind "FlowSchema" }}
{{- range $object.spec.rules }}{{ range .subjects }}{{ $_ := set .serviceAccount "namespace" $namespace }}{{ end }}{{ end }}
{{- end }}
{{- $_ := set $object.metadata "labels" (merge $labels ($object.metadata.labels | default dict)) }}
{{- if eq $object.kind "Deployment" }}{{ include "policysched.deployment" . }}{{ end }}
{{- if eq $object.kind "PriorityClass" }}{{ $_ := set $object.metadata "name" .root.Values.priorityClass.name }}{{ end }}
{{- if eq $object.kind "NetworkPolicy" }}
{{- with .root.Values.networkPolicy.from }}{{ $_ := set (first $object.spec.ingress) "from" . }}{{ end }}
{{- end }}
{{- toYaml $object }}
{{- end }}

{{/* Changes the Deployment by the values; prints nothing. */}}
{{- define "policysched.deployment" }}
{{- $values := .root.Values }}
{{- $template := .object.spec.template }}
{{- $pod := $template.spec }}
{{- $container := first $pod.containers }}
{{- $image := printf "%s:%s" $values.image.repository ($values.image.tag | default .root.Chart.AppVersion) }}
{{- with $values.image.digest }}{{ $image = printf "%s@%s" $values.image.repository . }}{{ end }}
{{- $_ := set .object.spec "replicas" $values.replicas }}
{{- $_ := set $container "image" $image }}
{{- $_ := set $container "imagePullPolicy" $values.image.pullPolicy }}
{{- $_ := set $container "args" (concat $container.args $values.extraArgs) }}
{{- $_ := set $container "resources" $values.resources }}
{{- $_ := set $container "volumeMounts" (concat $container.volumeMounts $values.volumeMounts) }}
{{- with $values.env }}{{ $_ := set $container "env" . }}{{ end }}
{{- $_ := set $pod "volumes" (concat $pod.volumes $values.volumes) }}
{{- $_ := set $pod "priorityClassName" $values.priorityClass.name }}
{{- range list "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" "imagePullSecrets" }}
{{- $value := index $values . }}
{{- if $value }}{{ $_ := set $pod . $value }}{{ end }}
{{- end }}
{{- $checksum := dict "checksum/settings" (include "policysched.settings" .root | sha256sum) }}
{{- $_ := set $template.metadata "annotations" (merge $checksum $values.podAnnotations $template.metadata.annotations) }}
{{- $_ := set $template.metadata "labels" (merge $template.metadata.labels $values.podLabels) }}
{{- end }}

{{- define "policysched.settings" }}
{{- $namespace := .Release.Namespace }}
{{- $shipped := .Files.Get "manifests/settings.yaml" | fromYaml }}
{{- $_ := set $shipped "policies" (printf "%s/policies" $namespace) }}
{{- $_ := set $shipped "last_good" (printf "%s/policies-last-good" $namespace) }}
{{- $_ := set $shipped.leader_election "lease" (printf "%s/policysched" $namespace) }}
{{- toYaml (mergeOverwrite $shipped .Values.settings) }}
{{- end }}
