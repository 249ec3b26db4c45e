// Results of the ledger's checks (server/ledger.h): a value, or a refusal.
#pragma once

#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "proto/cadre/v1/membership.pb.h"

namespace cadre {

// A refusal with its reason.
struct Refused {
  v1::Refusal refusal = v1::REFUSAL_UNSPECIFIED;
  std::string reason;
};

template <typename T>
using Decision = std::variant<T, Refused>;

inline Refused Malformed(std::string reason) { return {v1::REFUSAL_MALFORMED, std::move(reason)}; }

inline Refused UnknownRun(const std::string& run) {
  return {v1::REFUSAL_UNKNOWN_RUN, absl::StrCat("run '", run, "' is not open here")};
}

}  // namespace cadre
