#include "tests/server/rounds_server.h"

#include <gtest/gtest.h>

#include "absl/time/clock.h"
#include "base/rpc/grpc_channel.h"

namespace cadre::testing {

RoundsServer::RoundsServer(const std::string& folder, RoundsServiceOptions options) {
  auto host = ShardHost::Open({.data_dir = folder, .name = "agg-0", .counters = &counters_});
  EXPECT_TRUE(host.ok()) << host.status();
  host_ = *std::move(host);
  service_ = std::make_unique<RoundsService>(options, *host_, counters_);
  auto daemon = Daemon::Start({}, {service_.get()});
  EXPECT_TRUE(daemon.ok()) << daemon.status();
  daemon_ = *std::move(daemon);
}

RoundsServer::~RoundsServer() { daemon_->Drain(absl::ZeroDuration()); }

std::unique_ptr<v1::Rounds::Stub> RoundsServer::Stub() const {
  return v1::Rounds::NewStub(MakeChannel(address(), Plane::kBulk));
}

std::unique_ptr<RoundsClient> RoundsServer::Client() const {
  return std::make_unique<RoundsClient>([address = address()] { return address; });
}

bool RoundsServer::WaitFor(const std::string& counter, uint64_t value) const {
  const absl::Time until = absl::Now() + absl::Seconds(10);
  while (counters_.Get(counter) < value) {
    if (absl::Now() > until) return false;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return true;
}

}  // namespace cadre::testing
