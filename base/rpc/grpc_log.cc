#include "base/rpc/grpc_log.h"

#include <glog/logging.h>
#include <grpc/support/log.h>

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/file_limit.h"
#include "base/log_limit.h"
#include "base/peer_text.h"

namespace cadre {
namespace {

// How gRPC begins the line (tcp_server_posix.cc).
constexpr absl::string_view kFailedAccept = "Failed accept";

struct FailedAccept {
  absl::Mutex mutex;
  // The line; empty: accept has not failed.
  std::string line ABSL_GUARDED_BY(mutex);
};

FailedAccept& TheFailedAccept() {
  static auto* const failed = new FailedAccept();
  return *failed;
}

class GrpcLog {
 public:
  void Write(const gpr_log_func_args& line) ABSL_LOCKS_EXCLUDED(mutex_) {
    const std::optional<std::string> text = Pass(line);
    if (!text.has_value()) return;
    const google::LogSeverity severity =
        line.severity == GPR_LOG_SEVERITY_ERROR ? google::GLOG_ERROR : google::GLOG_INFO;
    google::LogMessage(line.file, line.line, severity).stream() << "gRPC: " << Escaped(*text);
  }

 private:
  std::optional<std::string> Pass(const gpr_log_func_args& line) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return limits_[{line.file, line.line}].Pass(line.message, absl::Now());
  }

  absl::Mutex mutex_;
  // By file and line in gRPC's code.
  std::map<std::pair<std::string, int>, LogLimit> limits_ ABSL_GUARDED_BY(mutex_);
};

void WriteLine(gpr_log_func_args* line) {
  if (absl::StartsWith(line->message, kFailedAccept)) {
    FailedAccept& failed = TheFailedAccept();
    absl::MutexLock lock(&failed.mutex);
    failed.line = line->message;
  }
  static auto* const log = new GrpcLog();
  log->Write(*line);
}

}  // namespace

void LimitGrpcLog() { gpr_set_log_function(WriteLine); }

absl::Status CheckAccepting() {
  FailedAccept& failed = TheFailedAccept();
  absl::MutexLock lock(&failed.mutex);
  if (failed.line.empty()) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("a connection could not be accepted (", failed.line,
                   "), after which none is accepted any more: ", DescriptorLimitText()));
}

}  // namespace cadre
