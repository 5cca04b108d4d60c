# A live job over a subscription of its own: the topics, the account with no more rights than it needs, and the job.
# The ledger's database and the network are yours; so is the topic's publisher.

resource "google_service_account" "worker" {
  account_id   = "quiltstream-worker"
  display_name = "quiltstream: workers and launcher"
}

resource "google_pubsub_topic" "readings" {
  name                       = "quiltstream-readings"
  message_retention_duration = var.retention
}

# The job alone reads it: messages that another reader takes are missing from the windows.
resource "google_pubsub_subscription" "readings" {
  name                       = "quiltstream-readings"
  topic                      = google_pubsub_topic.readings.id
  ack_deadline_seconds       = 60
  retain_acked_messages      = true
  message_retention_duration = var.retention

  expiration_policy {
    ttl = ""
  }
}

resource "google_pubsub_topic" "releases" {
  name = "quiltstream-releases"
}

resource "google_pubsub_topic" "rejects" {
  name = "quiltstream-rejects"
}

resource "google_project_iam_member" "worker" {
  project = var.project
  role    = "roles/dataflow.worker"
  member  = "serviceAccount:${google_service_account.worker.email}"
}

# A Flex Template's launcher runs under the job's own account: there it creates the job, which names that account.
resource "google_project_iam_member" "launcher" {
  project = var.project
  role    = "roles/dataflow.developer"
  member  = "serviceAccount:${google_service_account.worker.email}"
}

resource "google_service_account_iam_member" "launcher" {
  service_account_id = google_service_account.worker.name
  role               = "roles/iam.serviceAccountUser"
  member             = "serviceAccount:${google_service_account.worker.email}"
}

# The launcher and the workers pull the image.
resource "google_artifact_registry_repository_iam_member" "image" {
  repository = var.repository
  role       = "roles/artifactregistry.reader"
  member     = "serviceAccount:${google_service_account.worker.email}"
}

resource "google_pubsub_subscription_iam_member" "reads" {
  for_each     = toset(["roles/pubsub.subscriber", "roles/pubsub.viewer"])
  subscription = google_pubsub_subscription.readings.name
  role         = each.value
  member       = "serviceAccount:${google_service_account.worker.email}"
}

resource "google_pubsub_topic_iam_member" "writes" {
  for_each = {
    releases = google_pubsub_topic.releases.name
    rejects  = google_pubsub_topic.rejects.name
  }
  topic  = each.value
  role   = "roles/pubsub.publisher"
  member = "serviceAccount:${google_service_account.worker.email}"
}

resource "google_storage_bucket_iam_member" "files" {
  bucket = var.bucket
  role   = "roles/storage.objectAdmin"
  member = "serviceAccount:${google_service_account.worker.email}"
}

resource "google_secret_manager_secret_iam_member" "password" {
  secret_id = var.ledger_secret
  role      = "roles/secretmanager.secretAccessor"
  member    = "serviceAccount:${google_service_account.worker.email}"
}

resource "google_dataflow_flex_template_job" "live" {
  provider                = google-beta
  name                    = "quiltstream-live"
  region                  = var.region
  container_spec_gcs_path = var.template
  sdk_container_image     = var.image
  service_account_email   = google_service_account.worker.email
  subnetwork              = var.subnetwork
  ip_configuration        = "WORKER_IP_PRIVATE"
  kms_key_name            = var.kms_key
  temp_location           = "gs://${var.bucket}/quiltstream/temp"
  staging_location        = "gs://${var.bucket}/quiltstream/staging"
  enable_streaming_engine = true
  num_workers             = 1
  max_workers             = var.max_workers

  # Windows that are not whole are never published, drained or cancelled: this ends the job sooner.
  on_delete = "cancel"

  parameters = {
    settings = var.settings
  }

  depends_on = [
    google_artifact_registry_repository_iam_member.image,
    google_project_iam_member.launcher,
    google_project_iam_member.worker,
    google_pubsub_subscription_iam_member.reads,
    google_pubsub_topic_iam_member.writes,
    google_secret_manager_secret_iam_member.password,
    google_service_account_iam_member.launcher,
    google_storage_bucket_iam_member.files,
  ]
}
