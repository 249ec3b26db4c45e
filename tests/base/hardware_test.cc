#include "base/hardware.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

namespace cadre {
namespace {

TEST(HardwareTest, ReportsHost) {
  EXPECT_FALSE(ProcessorName().empty());
  EXPECT_EQ(ProcessorName().find('\n'), std::string::npos);
  EXPECT_EQ(DeviceName(1), ProcessorName() + ", 1 thread");
  EXPECT_EQ(DeviceName(8), ProcessorName() + ", 8 threads");
  EXPECT_GE(UsableCores(), 1);
  EXPECT_GT(UsableMemoryBytes(), uint64_t{1} << 26);
}

// The test uses another thread, so that the affinity of this one does not change.
TEST(HardwareTest, UsableCoresFollowAffinity) {
  int usable = 0;
  std::thread confined([&] {
    cpu_set_t all;
    CPU_ZERO(&all);
    ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
    int first = 0;
    while (!CPU_ISSET(first, &all)) ++first;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    usable = UsableCores();
  });
  confined.join();
  EXPECT_EQ(usable, 1);
}

}  // namespace
}  // namespace cadre
