// Limits the lines of a log that other processes cause, such as refused connections: at most one
// per interval passes, with the number of those that did not.
//
//   if (const auto line = limit.Pass(absl::StrCat("refused: ", reason), absl::Now())) {
//     LOG(INFO) << *line;
//   }
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace cadre {

class LogLimit {
 public:
  explicit LogLimit(absl::Duration interval = absl::Seconds(1)) : interval_(interval) {}

  // The line to write; nullopt if a line has passed within the interval before `now`.
  std::optional<std::string> Pass(absl::string_view line, absl::Time now) {
    // A clock that was set back must not silence the log.
    if (now < next_ && next_ <= now + interval_) {
      ++omitted_;
      return std::nullopt;
    }
    next_ = now + interval_;
    const int64_t omitted = std::exchange(omitted_, 0);
    if (omitted == 0) return std::string(line);
    return absl::StrCat(line, " (", omitted, " similar lines were omitted)");
  }

 private:
  const absl::Duration interval_;
  absl::Time next_ = absl::InfinitePast();
  int64_t omitted_ = 0;
};

}  // namespace cadre
