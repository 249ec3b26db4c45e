#include "base/rpc/call_metrics.h"

#include <google/protobuf/descriptor.h>

#include <utility>
#include <vector>

#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"

namespace cadre {
namespace {

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::ServerRpcInfo;

// The names of the codes as Go's gRPC library spells them, which dashboards expect.
const char* CodeName(grpc::StatusCode code) {
  constexpr const char* kNames[] = {
      "OK",       "Canceled",       "Unknown",          "InvalidArgument",   "DeadlineExceeded",
      "NotFound", "AlreadyExists",  "PermissionDenied", "ResourceExhausted", "FailedPrecondition",
      "Aborted",  "OutOfRange",     "Unimplemented",    "Internal",          "Unavailable",
      "DataLoss", "Unauthenticated"};
  const auto index = static_cast<size_t>(code);
  return index < std::size(kNames) ? kNames[index] : "Unknown";
}

// As the protocol declares the method: a server may serve unary methods as streams.
bool IsUnary(const ServerRpcInfo& info) {
  const std::string name = absl::StrReplaceAll(absl::StripPrefix(info.method(), "/"), {{"/", "."}});
  const auto* const method =
      google::protobuf::DescriptorPool::generated_pool()->FindMethodByName(name);
  if (method == nullptr) return info.type() == ServerRpcInfo::Type::UNARY;
  return !method->client_streaming() && !method->server_streaming();
}

}  // namespace

class CallMetrics::Interceptor final : public grpc::experimental::Interceptor {
 public:
  Interceptor(CallMetrics& metrics, const ServerRpcInfo& info)
      : metrics_(metrics), name_(info.method()), begin_(absl::Now()) {
    absl::MutexLock lock(&metrics_.mutex_);
    Method& method = metrics_.MethodOf(name_);
    if (method.started++ == 0) method.unary = IsUnary(info);
  }

  // A call that is cancelled may have no status.
  ~Interceptor() override {
    if (!ended_) End(grpc::StatusCode::CANCELLED);
  }

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      End(methods->GetSendStatus().error_code());
    }
    methods->Proceed();
  }

 private:
  void End(grpc::StatusCode code) {
    ended_ = true;
    absl::MutexLock lock(&metrics_.mutex_);
    Method& method = metrics_.MethodOf(name_);
    ++method.handled[code];
    if (method.unary) method.seconds.Observe(absl::Now() - begin_);
  }

  CallMetrics& metrics_;
  const char* const name_;
  const absl::Time begin_;
  bool ended_ = false;
};

class CallMetrics::Factory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit Factory(CallMetrics& metrics) : metrics_(metrics) {}

  grpc::experimental::Interceptor* CreateServerInterceptor(ServerRpcInfo* info) override {
    return new Interceptor(metrics_, *info);
  }

 private:
  CallMetrics& metrics_;
};

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>
CallMetrics::MakeInterceptors() {
  return std::make_unique<Factory>(*this);
}

void CallMetrics::Collect(Metrics& metrics) const {
  absl::MutexLock lock(&mutex_);
  for (const auto& [name, method] : methods_) {
    const std::vector<std::string> parts = absl::StrSplit(absl::StripPrefix(name, "/"), '/');
    if (parts.size() != 2) continue;
    const Metrics::Labels labels = {{"grpc_service", parts[0]}, {"grpc_method", parts[1]}};
    metrics.Counter("grpc_server_started_total", "Calls that have begun.",
                    static_cast<double>(method.started), labels);
    for (const auto& [code, count] : method.handled) {
      Metrics::Labels with_code = labels;
      with_code.emplace_back("grpc_code", CodeName(code));
      metrics.Counter("grpc_server_handled_total", "Calls that have ended, by status.",
                      static_cast<double>(count), with_code);
    }
    if (method.unary) {
      metrics.AddHistogram("grpc_server_handling_seconds", "Duration of unary calls.",
                           method.seconds.Read(), labels);
    }
  }
}

}  // namespace cadre
