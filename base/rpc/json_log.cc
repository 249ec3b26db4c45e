#include "base/rpc/json_log.h"

#include <glog/logging.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace cadre {
namespace {

class JsonSink final : public google::LogSink {
 public:
  void send(google::LogSeverity severity, const char* /*full_filename*/, const char* file, int line,
            const google::LogMessageTime& /*time*/, const char* message, size_t size) override {
    nlohmann::ordered_json entry;
    entry["time"] = absl::FormatTime("%Y-%m-%d%ET%H:%M:%E6SZ", absl::Now(), absl::UTCTimeZone());
    entry["severity"] = absl::AsciiStrToLower(google::GetLogSeverityName(severity));
    entry["file"] = file;
    entry["line"] = line;
    entry["message"] = std::string(message, size);
    // Bytes that are not UTF-8 become replacement characters.
    const std::string text =
        entry.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
    std::fwrite(text.data(), 1, text.size(), stderr);
  }
};

}  // namespace

absl::Status SetLogFormat(const std::string& format) {
  if (format == "text") return absl::OkStatus();
  if (format != "json") {
    return absl::InvalidArgumentError(
        absl::StrCat("--log-format must be text or json, not '", format, "'"));
  }
  // Never destroyed, because threads may log until the process ends.
  static JsonSink* const sink = new JsonSink;
  FLAGS_logtostderr = false;
  FLAGS_alsologtostderr = false;
  FLAGS_stderrthreshold = google::NUM_SEVERITIES;
  for (int severity = 0; severity < google::NUM_SEVERITIES; ++severity) {
    google::SetLogDestination(severity, "");
  }
  google::AddLogSink(sink);
  return absl::OkStatus();
}

}  // namespace cadre
