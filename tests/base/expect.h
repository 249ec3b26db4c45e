// Shared by tests: messages in text format, and matchers for statuses.
#pragma once

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace cadre {

// Parses a message in text format. An error fails the test.
template <typename Message>
Message Parse(const std::string& text) {
  Message message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << text;
  return message;
}

inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

// Matches an absl::Status or StatusOr with this code whose message contains `text`.
MATCHER_P2(IsError, code, text, "") {
  const absl::Status& status = StatusOf(arg);
  *result_listener << status;
  return status.code() == code && status.message().find(text) != absl::string_view::npos;
}

MATCHER(IsOk, "") {
  *result_listener << StatusOf(arg);
  return StatusOf(arg).ok();
}

constexpr auto kInvalidArgument = absl::StatusCode::kInvalidArgument;
constexpr auto kDataLoss = absl::StatusCode::kDataLoss;
constexpr auto kNotFound = absl::StatusCode::kNotFound;

}  // namespace cadre
