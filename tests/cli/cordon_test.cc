// Tests `cadre cordon` and `cadre drain` with a fake coordinator.
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

class FakeMembers final : public v1::Members::Service {
 public:
  grpc::Status Cordon(grpc::ServerContext*, const v1::CordonRequest* request,
                      v1::CordonReply* reply) override {
    received = *request;
    if (request->member() == "nobody") return ToGrpc(absl::NotFoundError("no such worker: nobody"));
    reply->add_members("w2");
    reply->add_members("w10");
    if (request->member() == "agg-0" && request->drain()) reply->add_sole_models("run-3-best");
    return grpc::Status::OK;
  }

  v1::CordonRequest received;
};

TEST(CordonTest, PrintsWorkers) {
  FakeMembers coordinator;
  auto daemon = Daemon::Start({.listen = "127.0.0.1:0"}, {&coordinator});
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  const std::string address = absl::StrCat(" --insecure --coordinator ", (*daemon)->address());
  const Result cordoned = Call(absl::StrCat("cordon host-1", address));
  EXPECT_EQ(cordoned.exit_code, kExitOk) << cordoned.err;
  EXPECT_EQ(cordoned.out, "w2\nw10\n");
  EXPECT_EQ(coordinator.received.member(), "host-1");
  EXPECT_FALSE(coordinator.received.undo());
  const Result undone = Call(absl::StrCat("cordon host-1 --undo -o json", address));
  EXPECT_TRUE(coordinator.received.undo());
  EXPECT_EQ(nlohmann::json::parse(undone.out).at("members").size(), 2u);
  const Result drained = Call(absl::StrCat("drain host-1", address));
  EXPECT_EQ(drained.out, "w2\nw10\n");
  EXPECT_TRUE(coordinator.received.drain());
  EXPECT_FALSE(coordinator.received.undo());
  EXPECT_EQ(drained.err, "");
  const Result aggregator = Call(absl::StrCat("drain agg-0", address));
  EXPECT_EQ(aggregator.exit_code, kExitOk);
  EXPECT_THAT(aggregator.err, HasSubstr("can be read only while agg-0 runs: run-3-best"));
  const Result unknown = Call(absl::StrCat("cordon nobody", address));
  EXPECT_NE(unknown.exit_code, kExitOk);
  EXPECT_THAT(unknown.err, HasSubstr("no such worker: nobody"));
  (*daemon)->Drain(absl::Seconds(2));
}

}  // namespace
}  // namespace cadre
