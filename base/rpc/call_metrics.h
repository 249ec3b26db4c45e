// Counts the calls of a gRPC server by method and status, under the names that gRPC servers
// commonly export: grpc_server_started_total, grpc_server_handled_total,
// grpc_server_handling_seconds.
//
// Thread-safe.
#pragma once

#include <grpcpp/support/server_interceptor.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/http/histogram.h"
#include "base/http/metrics.h"

namespace cadre {

class CallMetrics {
 public:
  // For a server builder. The metrics must outlive the server.
  std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeInterceptors();

  void Collect(Metrics& metrics) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  class Interceptor;
  class Factory;

  struct Method {
    uint64_t started = 0;
    std::map<grpc::StatusCode, uint64_t> handled;
    // Whether the calls are unary; only those have durations.
    bool unary = false;
    Histogram seconds;
  };
  // Only methods that a service has are counted, so their number is limited.
  Method& MethodOf(const char* name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return methods_[name];
  }

  mutable absl::Mutex mutex_;
  std::map<std::string, Method> methods_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre
