// Tests `cadre adopt`, `cadre resume`, `cadre rollback` and `cadre delete` with a fake coordinator.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/rpc/daemon.h"
#include "base/rpc/grpc_channel.h"
#include "base/rpc/grpc_status.h"
#include "proto/cadre/v1/control.grpc.pb.h"
#include "tests/cli/program.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

class FakeRuns final : public v1::Runs::Service {
 public:
  grpc::Status Resume(grpc::ServerContext*, const v1::ResumeRequest* request,
                      v1::ResumeReply*) override {
    if (request->run() == "run-1") return grpc::Status::OK;
    return ToGrpc(absl::FailedPreconditionError("run run-2 is not parked"));
  }
  grpc::Status Rollback(grpc::ServerContext*, const v1::RollbackRequest* request,
                        v1::RollbackReply*) override {
    rollback = *request;
    if (request->version() == 16) return grpc::Status::OK;
    return ToGrpc(absl::FailedPreconditionError("those that are kept: 17, 16, 8"));
  }
  grpc::Status Delete(grpc::ServerContext*, const v1::DeleteRequest* request,
                      v1::DeleteReply*) override {
    if (request->run() == "run-1") return grpc::Status::OK;
    return ToGrpc(absl::FailedPreconditionError("run run-2 has not ended"));
  }
  grpc::Status Adopt(grpc::ServerContext*, const v1::AdoptRequest* request,
                     v1::AdoptReply* reply) override {
    v1::AdoptedRun& adopted = *reply->add_runs();
    adopted.set_run("run-1");
    adopted.set_version(7);
    adopted.set_step(70);
    if (!request->run().empty()) return grpc::Status::OK;
    v1::AdoptedRun& other = *reply->add_runs();
    other.set_run("run-2");
    other.set_problem("shard 1 of 2 is missing");
    return grpc::Status::OK;
  }

  v1::RollbackRequest rollback;
};

TEST(AdoptTest, CallsCoordinator) {
  FakeRuns coordinator;
  auto daemon = Daemon::Start({.listen = "127.0.0.1:0"}, {&coordinator});
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  const std::string address = absl::StrCat(" --insecure --coordinator ", (*daemon)->address());
  const Result one = Call(absl::StrCat("adopt run-1 -o json", address));
  EXPECT_EQ(one.exit_code, kExitOk) << one.err;
  EXPECT_EQ(nlohmann::json::parse(one.out).at("runs").at(0).at("version"), 7);
  const Result all = Call(absl::StrCat("adopt", address));
  EXPECT_EQ(all.exit_code, kExitFailure) << "a run was not adopted";
  EXPECT_THAT(all.out, HasSubstr("shard 1 of 2 is missing"));

  EXPECT_EQ(Call(absl::StrCat("resume run-1", address)).exit_code, kExitOk);
  const Result refused = Call(absl::StrCat("resume run-2", address));
  EXPECT_NE(refused.exit_code, kExitOk);
  EXPECT_THAT(refused.err, HasSubstr("not parked"));

  const Result back = Call(absl::StrCat("rollback run-1 --to 16 --leave-out 0,2", address));
  EXPECT_EQ(back.exit_code, kExitOk) << back.err;
  EXPECT_THAT(back.err, HasSubstr("run run-1 continues from version 16 without groups 0,2"));
  EXPECT_THAT(coordinator.rollback.leave_out(), ::testing::ElementsAre(0, 2));
  const Result unknown = Call(absl::StrCat("rollback run-1 --to 3", address));
  EXPECT_NE(unknown.exit_code, kExitOk);
  EXPECT_THAT(unknown.err, HasSubstr("those that are kept: 17, 16, 8"));
  EXPECT_EQ(Call(absl::StrCat("rollback run-1", address)).exit_code, kExitUsage);
  EXPECT_EQ(Call(absl::StrCat("rollback run-1 --to 16 --leave-out x", address)).exit_code,
            kExitUsage);

  EXPECT_EQ(Call(absl::StrCat("delete run-1", address)).exit_code, kExitOk);
  const Result live = Call(absl::StrCat("delete run-2", address));
  EXPECT_NE(live.exit_code, kExitOk);
  EXPECT_THAT(live.err, HasSubstr("has not ended"));
  (*daemon)->Drain(absl::Seconds(2));
}

}  // namespace
}  // namespace cadre
