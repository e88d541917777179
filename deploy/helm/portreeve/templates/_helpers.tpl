{{/* The name of all objects of this release. */}}
{{- define "portreeve.name" -}}
{{- .Values.fullnameOverride | default .Release.Name -}}
{{- end }}

{{/* The name of the Lease. */}}
{{- define "portreeve.lease" -}}
{{- .Values.leaderElection.resourceName | default (include "portreeve.name" .) -}}
{{- end }}

{{/* The labels that identify the pods of this release. */}}
{{- define "portreeve.labels" -}}
app.kubernetes.io/name: portreeve
app.kubernetes.io/instance: {{ include "portreeve.name" . }}
{{- end }}

{{/* Not empty if the leader issues the serving certificate. */}}
{{- define "portreeve.issues" -}}
{{- if and .Values.servingCertificate.enabled (not .Values.servingCertificate.certManager.enabled) -}}
true
{{- end -}}
{{- end }}

{{/* The names of the Service of the replicas, separated by commas. */}}
{{- define "portreeve.serviceNames" -}}
{{- $service := printf "%s.%s.svc" (include "portreeve.name" .) .Release.Namespace -}}
{{ $service }},{{ $service }}.cluster.local
{{- end }}

{{/* The names of the Service of the webhooks, separated by commas. */}}
{{- define "portreeve.webhookNames" -}}
{{- $service := printf "%s-webhook.%s.svc" (include "portreeve.name" .) .Release.Namespace -}}
{{ $service }},{{ $service }}.cluster.local
{{- end }}

{{/* The full names of the enabled controllers, as a JSON list. The rule is that of --controllers: the first
item that names a controller decides. Without such an item, a controller that is on by default is enabled by '*'. */}}
{{- define "portreeve.enabled" -}}
{{- $items := .Values.controllers -}}
{{- $enabled := list -}}
{{- $names := list "*" -}}
{{- range $controller := .Files.Get "files/controllers.json" | fromJsonArray -}}
  {{- $own := concat (list $controller.name) $controller.aliases -}}
  {{- $names = concat $names $own -}}
  {{- $verdict := "" -}}
  {{- range $item := $items -}}
    {{- if and (not $verdict) (has $item $own) -}}
      {{- $verdict = "on" -}}
    {{- else if and (not $verdict) (has (trimPrefix "-" $item) $own) -}}
      {{- $verdict = "off" -}}
    {{- end -}}
  {{- end -}}
  {{- if or (eq $verdict "on") (and (not $verdict) $controller.onByDefault (has "*" $items)) -}}
    {{- $enabled = append $enabled $controller.name -}}
  {{- end -}}
{{- end -}}
{{- range $item := $items -}}
  {{- if not (has (trimPrefix "-" $item) $names) -}}
    {{- fail (printf "controllers: unknown controller %q; use one of %s" $item (join ", " $names)) -}}
  {{- end -}}
{{- end -}}
{{- toJson $enabled -}}
{{- end }}

{{/* A generated file, with the names of this release. Takes the root context and the path of the file. */}}
{{- define "portreeve.file" -}}
{{- $root := index . 0 -}}
{{- $text := $root.Files.Get (index . 1) -}}
{{- $text = $text | replace "release-namespace" $root.Release.Namespace -}}
{{- $text = $text | replace "release-account" (include "portreeve.name" $root) -}}
{{- $text | replace "release-lease" (include "portreeve.lease" $root) -}}
{{- end }}

{{/* The generated documents of the enabled controllers, without duplicates, as a JSON list. Takes the root context and the name of the folder. */}}
{{- define "portreeve.generated" -}}
{{- $root := index . 0 -}}
{{- $folder := index . 1 -}}
{{- $documents := list -}}
{{- range $controller := include "portreeve.enabled" $root | fromJsonArray -}}
  {{- $text := include "portreeve.file" (list $root (printf "files/%s/%s.yaml" $folder $controller)) -}}
  {{- range $document := splitList "\n---\n" $text -}}
    {{- with fromYaml $document -}}
      {{- $documents = append $documents . -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- uniq $documents | toJson -}}
{{- end }}

{{/* The configurations of the webhooks of the enabled controllers, and the role for their parameters, as a JSON object by kind.
Each controller has its own webhooks and rules. This merges them into one object of each kind. */}}
{{- define "portreeve.webhooks" -}}
{{- $merged := dict -}}
{{- range $document := include "portreeve.generated" (list . "webhooks") | fromJsonArray -}}
  {{- $first := get $merged $document.kind -}}
  {{- if not $first -}}
    {{- $_ := set $merged $document.kind $document -}}
  {{- else if $document.webhooks -}}
    {{- $_ := set $first "webhooks" (concat $first.webhooks $document.webhooks) -}}
  {{- else if $document.rules -}}
    {{- $_ := set $first "rules" (concat $first.rules $document.rules | uniq) -}}
  {{- end -}}
{{- end -}}
{{- toJson $merged -}}
{{- end }}

{{/* The value of --tls-ca-bundles: the configurations of the webhooks, and the definition whose objects a webhook converts. */}}
{{- define "portreeve.caBundles" -}}
{{- $bundles := list -}}
{{- range $kind, $document := include "portreeve.webhooks" . | fromJson -}}
  {{- if hasSuffix "WebhookConfiguration" $kind -}}
    {{- $bundles = append $bundles (printf "%ss/%s" (lower $kind) $document.metadata.name) -}}
  {{- end -}}
{{- end -}}
{{- if has "crontab-controller" (include "portreeve.enabled" . | fromJsonArray) -}}
  {{- $bundles = append $bundles "customresourcedefinitions/crontabs.stable.example.com" -}}
{{- end -}}
{{- join "," $bundles -}}
{{- end }}

{{/* The role for --tls-ca-bundles and its binding, as a JSON list. The generated role has a rule for each resource. */}}
{{- define "portreeve.bundleRole" -}}
{{- $bundles := include "portreeve.caBundles" . -}}
{{- $documents := list -}}
{{- range $text := include "portreeve.file" (list . "files/ca-bundles.yaml") | splitList "\n---\n" -}}
  {{- $document := fromYaml $text -}}
  {{- if $document.rules -}}
    {{- $rules := list -}}
    {{- range $rule := $document.rules -}}
      {{- if contains (printf "%s/" (first $rule.resources)) $bundles -}}
        {{- $rules = append $rules $rule -}}
      {{- end -}}
    {{- end -}}
    {{- $_ := set $document "rules" $rules -}}
  {{- end -}}
  {{- if $bundles -}}
    {{- $documents = append $documents $document -}}
  {{- end -}}
{{- end -}}
{{- toJson $documents -}}
{{- end }}
