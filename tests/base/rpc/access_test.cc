#include "base/rpc/access.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>

#include "proto/method_access.h"
#include "tests/base/expect.h"

namespace cadre {
namespace {

constexpr Role kRoles[] = {Role::kOperator, Role::kViewer, Role::kWorker, Role::kAggregator,
                           Role::kCoordinator};

class AccessTest : public ::testing::Test {
 protected:
  AccessTest() {
    auto policy = AccessPolicy::Make("d");
    EXPECT_TRUE(policy.ok()) << policy.status();
    policy_ = *std::move(policy);
  }

  std::shared_ptr<AccessPolicy> policy_;
};

TEST_F(AccessTest, RolesMayCallTheMethodsForThem) {
  const std::map<v1::Access, std::set<Role>> permitted = {
      {v1::VIEWER, {Role::kViewer, Role::kOperator}},
      {v1::OPERATOR, {Role::kOperator}},
      {v1::MEMBER, {Role::kWorker, Role::kAggregator}},
      {v1::WORKER, {Role::kWorker}},
      {v1::AGGREGATOR, {Role::kAggregator}}};
  for (const auto& [path, access] : MethodAccess()) {
    for (const Role role : kRoles) {
      const bool reads = path == "/cadre.v1.Status/Locate" || path == "/cadre.v1.Rounds/Read";
      const auto expected = permitted.at(access).contains(role) || (reads && role == Role::kWorker)
                                ? absl::StatusCode::kOk
                                : absl::StatusCode::kPermissionDenied;
      EXPECT_EQ(policy_->Check(path, Identity{role, "a", "d"}).code(), expected)
          << path << ", " << RoleName(role);
    }
    EXPECT_EQ(policy_->Check(path, absl::InternalError("no certificate")).code(),
              absl::StatusCode::kUnauthenticated);
    for (const Role role : kRoles) {
      EXPECT_EQ(policy_->Check(path, Identity{role, "a", "e"}).code(),
                absl::StatusCode::kPermissionDenied)
          << "another trust domain";
    }
  }
}

TEST_F(AccessTest, HealthNeedsNoIdentity) {
  EXPECT_EQ(policy_->Check("/grpc.health.v1.Health/Check", absl::InternalError("")),
            absl::OkStatus());
}

TEST_F(AccessTest, OtherMethodsDoNotExist) {
  for (const char* path :
       {"", "/", "/cadre.v1.Runs/Submit2", "cadre.v1.Runs/Submit", "/cadre.v1.Runs/submit",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"}) {
    EXPECT_EQ(policy_->Check(path, Identity{Role::kOperator, "a", "d"}).code(),
              absl::StatusCode::kUnimplemented)
        << path;
  }
}

}  // namespace
}  // namespace cadre
