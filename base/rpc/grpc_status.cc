// absl::StatusCode and grpc::StatusCode have the same numbers. A detail is a payload of an
// absl::Status, with the same type URL.
#include "base/rpc/grpc_status.h"

#include <string>

#include "absl/strings/cord.h"
#include "proto/cadre/v1/error_details.pb.h"

namespace cadre {
namespace {

constexpr char kRetryInfo[] = "type.googleapis.com/google.rpc.RetryInfo";

absl::Status WithRetry(absl::Status status, absl::Duration retry_after) {
  v1::RetryInfo info;
  absl::Duration rest;
  info.mutable_retry_delay()->set_seconds(absl::IDivDuration(retry_after, absl::Seconds(1), &rest));
  info.mutable_retry_delay()->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(rest)));
  status.SetPayload(kRetryInfo, absl::Cord(info.SerializeAsString()));
  return status;
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const auto code = static_cast<grpc::StatusCode>(status.code());
  const std::string message(status.message());
  const absl::optional<absl::Cord> retry = status.GetPayload(kRetryInfo);
  if (!retry.has_value()) return grpc::Status(code, message);
  v1::ErrorStatus details;
  details.set_code(code);
  details.set_message(message);
  v1::ErrorDetail& detail = *details.add_details();
  detail.set_type_url(kRetryInfo);
  detail.set_value(std::string(*retry));
  return grpc::Status(code, message, details.SerializeAsString());
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status converted(static_cast<absl::StatusCode>(status.error_code()),
                         status.error_message());
  v1::ErrorStatus details;
  if (status.error_details().empty() || !details.ParseFromString(status.error_details())) {
    return converted;
  }
  for (const v1::ErrorDetail& detail : details.details()) {
    if (detail.type_url() == kRetryInfo)
      converted.SetPayload(kRetryInfo, absl::Cord(detail.value()));
  }
  return converted;
}

absl::Status BusyError(absl::string_view message, absl::Duration retry_after) {
  return WithRetry(absl::ResourceExhaustedError(message), retry_after);
}

absl::Status NotServingError(absl::string_view message, absl::Duration retry_after) {
  return WithRetry(absl::UnavailableError(message), retry_after);
}

std::optional<absl::Duration> RetryAfter(const absl::Status& status) {
  const absl::optional<absl::Cord> retry = status.GetPayload(kRetryInfo);
  v1::RetryInfo info;
  if (!retry.has_value() || !info.ParseFromString(std::string(*retry))) return std::nullopt;
  return absl::Seconds(info.retry_delay().seconds()) +
         absl::Nanoseconds(info.retry_delay().nanos());
}

}  // namespace cadre
