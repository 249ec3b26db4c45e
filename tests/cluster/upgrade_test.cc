// Members of one build and coordinators of others.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/protocol.h"
#include "base/rpc/credentials.h"
#include "base/rpc/daemon.h"
#include "coordinator/service/service.h"
#include "coordinator/store/sqlite_store.h"
#include "tests/cluster/cluster.h"

namespace cadre::testing {
namespace {

constexpr absl::Duration kLimit = absl::Seconds(60);
constexpr int kExitRefused = 64;

// A coordinator of another protocol, in this process, with the store and address of a cluster's.
class OtherCoordinator {
 public:
  OtherCoordinator(const Cluster& cluster, uint32_t protocol) {
    auto store = SqliteStore::Open({.path = cluster.store()});
    EXPECT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    Loop::Options options;
    options.machine.protocol = protocol;
    options.machine.lease = absl::Seconds(2);
    options.machine.heartbeat = options.machine.lease / 4;
    service_ = std::make_unique<CoordinatorService>(std::move(options));
    EXPECT_EQ(service_->Start(store_.get()), absl::OkStatus());
    const auto credentials = Credentials::FromFolder(cluster.TlsOf("coordinator"));
    EXPECT_TRUE(credentials.ok()) << credentials.status();
    if (!credentials.ok()) return;
    auto daemon = Daemon::Start({.listen = cluster.coordinator(), .credentials = *credentials},
                                service_->services());
    EXPECT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
  }
  ~OtherCoordinator() {
    service_->Drain();
    if (daemon_ != nullptr) daemon_->Drain(absl::Seconds(1));
  }

 private:
  std::unique_ptr<SqliteStore> store_;
  std::unique_ptr<CoordinatorService> service_;
  std::unique_ptr<Daemon> daemon_;
};

class UpgradeTest : public ::testing::Test {
 protected:
  // A run that has made a version, and whose coordinator has ended.
  void Begin() {
    const auto run = cluster_.StartRun(
        SmallSpec({.groups = 1, .ranks = 1, .aggregators = 1, .epochs = 100'000}));
    ASSERT_TRUE(run.ok()) << run.status();
    run_ = *run;
    AwaitVersion(1);
    cluster_.Kill("coordinator");
  }
  void AwaitVersion(uint32_t version) {
    const auto made = [&](const v1::StatusReply& status) {
      const v1::RunStatus* const run = FindRun(status, run_);
      if (run != nullptr) newest_ = run->version();
      return newest_ >= version;
    };
    const auto status = cluster_.Await(made, kLimit, absl::StrCat("version ", version));
    ASSERT_TRUE(status.ok()) << status.status();
  }

  Cluster cluster_;
  std::string run_;
  uint32_t newest_ = 0;
};

TEST_F(UpgradeTest, MembersOfTheBuildBeforeGoOn) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  const OtherCoordinator next(cluster_, kProtocol + 1);
  AwaitVersion(newest_ + 3);
}

TEST_F(UpgradeTest, MembersOfOlderBuildsExit) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  const OtherCoordinator later(cluster_, kProtocol + 2);
  const absl::Time until = absl::Now() + kLimit;
  for (const char* name : {"worker-0", "aggregator-0"}) {
    const auto ending = cluster_.process(name).WaitUntil(until);
    ASSERT_TRUE(ending.has_value()) << name;
    EXPECT_EQ(*ending, (Ending{false, kExitRefused})) << name;
  }
  const auto again =
      RunProgram("cadre-worker",
                 {absl::StrCat("--coordinator=", cluster_.coordinator()), "--name=worker-0-late",
                  absl::StrCat("--tls=", cluster_.TlsOf("worker-0"))},
                 kLimit);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->exit_code, kExitRefused);
}

}  // namespace
}  // namespace cadre::testing
