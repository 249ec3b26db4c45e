// The end of the own certificate, as a metric.
#pragma once

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/http/metrics.h"
#include "base/rpc/credentials.h"

namespace cadre {

// Nothing without TLS.
inline void AddCertificate(const Credentials& credentials, Metrics& metrics) {
  if (const auto left = credentials.SecondsLeft()) {
    metrics.Gauge(
        "cadre_certificate_expiry_timestamp_seconds",
        "When the certificate of the process ends, in seconds since the Unix epoch.",
        absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()) + static_cast<double>(*left));
  }
}

}  // namespace cadre
