#include "base/rpc/access.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/rpc/grpc_status.h"
#include "proto/method_access.h"

namespace cadre {
namespace {

// Orchestrators and load balancers probe it; it reveals only whether the process serves.
constexpr absl::string_view kHealthService = "/grpc.health.v1.Health/";
// Methods of operators that workers may call as well.
constexpr absl::string_view kReadsOfWorkers[] = {"/cadre.v1.Status/Locate",
                                                 "/cadre.v1.Rounds/Read"};

bool Permits(absl::string_view path, v1::Access access, Role role) {
  const bool reads = std::find(std::begin(kReadsOfWorkers), std::end(kReadsOfWorkers), path) !=
                     std::end(kReadsOfWorkers);
  if (reads && role == Role::kWorker) return true;
  switch (access) {
    case v1::VIEWER:
      return role == Role::kViewer || role == Role::kOperator;
    case v1::OPERATOR:
      return role == Role::kOperator;
    case v1::MEMBER:
      return role == Role::kWorker || role == Role::kAggregator;
    case v1::WORKER:
      return role == Role::kWorker;
    case v1::AGGREGATOR:
      return role == Role::kAggregator;
    default:
      return false;
  }
}

}  // namespace

AccessPolicy::AccessPolicy(std::string trust_domain, std::map<std::string, v1::Access> methods)
    : trust_domain_(std::move(trust_domain)), methods_(std::move(methods)) {}

absl::StatusOr<std::shared_ptr<AccessPolicy>> AccessPolicy::Make(std::string trust_domain) {
  std::map<std::string, v1::Access> methods = MethodAccess();
  for (const auto& [path, access] : methods) {
    if (access != v1::ACCESS_UNSPECIFIED) continue;
    return absl::InternalError(absl::StrCat(path, " does not state who may call it"));
  }
  return std::shared_ptr<AccessPolicy>(
      new AccessPolicy(std::move(trust_domain), std::move(methods)));
}

absl::Status AccessPolicy::Check(absl::string_view path,
                                 const absl::StatusOr<Identity>& caller) const {
  if (absl::StartsWith(path, kHealthService)) return absl::OkStatus();
  if (!caller.ok()) return absl::UnauthenticatedError(caller.status().message());
  if (caller->trust_domain != trust_domain_) {
    return absl::PermissionDeniedError(absl::StrCat(
        "the caller is of the trust domain ", caller->trust_domain, ", not of ", trust_domain_));
  }
  const auto method = methods_.find(std::string(path));
  if (method == methods_.end()) {
    return absl::UnimplementedError("this server does not know the method");
  }
  if (Permits(path, method->second, caller->role)) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("role ", RoleName(caller->role), " may not call ",
                                                  path, "; it requires ",
                                                  v1::Access_Name(method->second)));
}

grpc::Status AccessPolicy::Process(const InputMetadata& metadata, grpc::AuthContext* context,
                                   OutputMetadata* /*consumed*/, OutputMetadata* /*response*/) {
  const auto path = metadata.find(":path");
  const absl::string_view called =
      path == metadata.end() ? "" : absl::string_view(path->second.data(), path->second.size());
  return ToGrpc(Check(called, PeerIdentity(*context)));
}

}  // namespace cadre
