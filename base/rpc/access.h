// The one place where calls are permitted: before a method of any service is called, the role in
// the caller's certificate is compared with the method's option (proto/cadre/v1/access.proto).
//
//   CADRE_ASSIGN_OR_RETURN(const auto policy, AccessPolicy::Make("example.org"));
//   credentials->SetAuthMetadataProcessor(policy);
//
//   method requires   may be called by
//   VIEWER            viewers, operators
//   OPERATOR          operators
//   MEMBER            workers, aggregators
//   WORKER            workers
//   AGGREGATOR        aggregators
//
// Workers may also read versions (Locate, Rounds.Read), which operators do otherwise: a program
// that is started again after the end of its run loads the last version.
//
// Thread-safe.
#pragma once

#include <grpcpp/security/auth_metadata_processor.h>

#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/rpc/identity.h"
#include "proto/cadre/v1/access.pb.h"

namespace cadre {

// An authentication plugin rather than a server interceptor, because interceptors of gRPC 1.51
// cannot end a call with a status.
class AccessPolicy final : public grpc::AuthMetadataProcessor {
 public:
  // For all services of the protocol. Identities of other trust domains are refused.
  // Errors: Internal if a method does not state who may call it.
  static absl::StatusOr<std::shared_ptr<AccessPolicy>> Make(std::string trust_domain);

  // Errors: Unauthenticated, without an identity; PermissionDenied, by role or trust domain;
  // Unimplemented for a method that is not in the protocol.
  absl::Status Check(absl::string_view path, const absl::StatusOr<Identity>& caller) const;

  // Process does not wait, so it runs on the thread that received the call.
  bool IsBlocking() const override { return false; }
  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* context,
                       OutputMetadata* consumed, OutputMetadata* response) override;

 private:
  AccessPolicy(std::string trust_domain, std::map<std::string, v1::Access> methods);

  const std::string trust_domain_;
  const std::map<std::string, v1::Access> methods_;
};

}  // namespace cadre
