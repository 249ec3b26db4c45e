#include "base/rpc/grpc_log.h"

#include <glog/logging.h>
#include <grpc/support/log.h>

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/log_limit.h"
#include "base/peer_text.h"

namespace cadre {
namespace {

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
  static auto* const log = new GrpcLog();
  log->Write(*line);
}

}  // namespace

void LimitGrpcLog() { gpr_set_log_function(WriteLine); }

}  // namespace cadre
