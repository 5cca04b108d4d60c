variable "project" { description = "Project of everything here." }

variable "region" { description = "Region of the job; the ledger's database should be in it." }

variable "image" {
  type        = string
  description = "The image built from this folder, by its digest: the launcher and the workers must be of one build."
  validation {
    condition     = can(regex("@sha256:[0-9a-f]{64}$", var.image))
    error_message = "Name the image by its digest, NAME@sha256:..., so that workers that start later are of the same build."
  }
}

variable "repository" { description = "The image's repository in Artifact Registry, projects/PROJECT/locations/REGION/repositories/NAME." }

variable "template" { description = "The template's file, gs://BUCKET/FOLDER/template.json, made by gcloud dataflow flex-template build." }

variable "settings" { description = "The job's settings, gs://BUCKET/FOLDER/settings.yaml, with the model and the roster beside it." }

variable "bucket" { description = "Bucket of the template, the settings, and Dataflow's temporary files." }

variable "subnetwork" { description = "Subnetwork with Private Google Access from which the database is reached, regions/REGION/subnetworks/NAME." }

variable "ledger_secret" { description = "Secret with the ledger's password, projects/PROJECT/secrets/NAME." }

variable "kms_key" {
  type        = string
  description = "Key that encrypts what the job keeps; left out, Google's."
  default     = null
}

variable "retention" {
  type        = string
  description = "How long readings can be read again. At least twice windows.size, the lateness, and the longest outage."
  default     = "1209600s"
}

variable "max_workers" {
  type        = number
  description = "Most workers. The subscription is read by one; the others collect, draw noise and publish."
  default     = 3
}
