// Macros that propagate an absl::Status, and context for its message.
//
//   CADRE_RETURN_IF_ERROR(Open(path));
//   CADRE_ASSIGN_OR_RETURN(std::string text, ReadFile(path));
//
// A code states how the caller can react. Unavailable: retry; Aborted: re-plan; NotFound,
// InvalidArgument: the user must fix it; DataLoss: stored data is damaged; Internal: a bug.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre {

// The same code and payloads with "<context>: " before the message; OK stays OK.
absl::Status Annotate(const absl::Status& status, absl::string_view context);

}  // namespace cadre

#define CADRE_CONCAT_INNER_(a, b) a##b
#define CADRE_CONCAT_(a, b) CADRE_CONCAT_INNER_(a, b)

#define CADRE_RETURN_IF_ERROR(expr)                                                     \
  do {                                                                                  \
    if (absl::Status cadre_status_ = (expr); !cadre_status_.ok()) return cadre_status_; \
  } while (false)

#define CADRE_ASSIGN_OR_RETURN(lhs, expr) \
  CADRE_ASSIGN_OR_RETURN_IMPL_(CADRE_CONCAT_(cadre_statusor_, __LINE__), lhs, expr)
#define CADRE_ASSIGN_OR_RETURN_IMPL_(statusor, lhs, expr) \
  auto statusor = (expr);                                 \
  if (!statusor.ok()) return statusor.status();           \
  lhs = std::move(statusor).value()
