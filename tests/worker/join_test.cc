// The Hello that a worker sends when it joins.
#include "gtest/gtest.h"
#include "tests/server/fake_coordinator.h"
#include "worker/worker.h"

namespace cadre {
namespace {

// The coordinator names both versions when it refuses a member of another build, and divides the
// cores of a host among its workers.
TEST(JoinTest, HelloContainsVersionAndCores) {
  testing::FakeCoordinator coordinator;
  WorkerOptions options;
  options.coordinator = coordinator.address();
  options.name = "w";
  options.version = "1.2.3";
  options.host_cores = 77;
  options.make_compute = [] { return MakeCompute({}); };
  const auto worker = StartWorker(options);
  ASSERT_TRUE(worker.ok()) << worker.status();
  const v1::Hello hello = coordinator.Receive(v1::MemberMessage::kHello).hello();
  EXPECT_EQ(hello.name(), "w");
  EXPECT_EQ(hello.version(), "1.2.3");
  EXPECT_EQ(hello.cores(), 77U) << "those of the host, not those of the process";
}

}  // namespace
}  // namespace cadre
