{{/* The job's settings: the chart says where the ledger and its memory are, and the watchdog's port. */}}
{{- define "quiltstream.settings" -}}
{{- $settings := deepCopy .Values.settings -}}
{{- $_ := set $settings "ledger" (printf "%s?password_file=/run/secrets/ledger-password" .Values.ledger.url) -}}
{{- $_ := set $settings "roster" "roster.csv" -}}
{{- $_ := set $settings "memory" "/var/lib/quiltstream/ledger-memory.json" -}}
{{- $_ := set $settings "live" (merge (dict "metrics_port" 9466) ($settings.live | default dict)) -}}
{{- toYaml $settings -}}
{{- end -}}

{{/* The gateway's settings: the chart says where its password and the port of its counts are. */}}
{{- define "quiltstream.gateway" -}}
{{- $gateway := deepCopy .Values.gateway.settings -}}
{{- if .Values.gateway.secret -}}
{{- $_ := set $gateway.mqtt "password" (dict "file" "/run/secrets/mqtt/password") -}}
{{- end -}}
{{- $_ := set $gateway "metrics" (merge (dict "port" 9464) ($gateway.metrics | default dict)) -}}
{{- toYaml $gateway -}}
{{- end -}}

{{- define "quiltstream.pod" -}}
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "quiltstream.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}
