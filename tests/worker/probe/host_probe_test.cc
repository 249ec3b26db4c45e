// Profiles of hosts and devices are joined to one cluster profile.
#include "worker/probe/host_probe.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "plan/cluster_profile.h"
#include "tests/base/expect.h"
#include "tests/comm/transport/ranks.h"
#include "worker/probe/machine_probe.h"

namespace cadre {
namespace {

v1::DeviceProfile Device(double flops, double forward, uint32_t samples = 8) {
  v1::DeviceProfile device;
  device.set_name("cpu");
  device.set_flops(flops);
  v1::ModelTimes& model = *device.add_model();
  model.set_model("0123456789abcdef");
  v1::LayerTime& time = *model.add_time();
  time.set_layer("conv1");
  time.set_samples(samples);
  time.set_forward(forward);
  time.set_backward(2 * forward);
  return device;
}

v1::ClusterProfile Host(const std::string& name, const v1::DeviceProfile& device) {
  v1::ClusterProfile profile;
  profile.add_host()->set_name(name);
  profile.mutable_host(0)->set_device(device.name());
  *profile.add_device() = device;
  return profile;
}

TEST(MergeDevicesTest, TakesMediansByPart) {
  const v1::DeviceProfile merged =
      MergeDevices({Device(1e9, 1), Device(4e9, 2), Device(2e9, 9), Device(3e9, 5, /*samples=*/4)});
  EXPECT_EQ(merged.name(), "cpu");
  EXPECT_EQ(merged.flops(), 2.5e9);
  ASSERT_EQ(merged.model_size(), 1);
  ASSERT_EQ(merged.model(0).time_size(), 2);
  EXPECT_EQ(merged.model(0).time(0).samples(), 8U);
  EXPECT_EQ(merged.model(0).time(0).forward(), 2);
  EXPECT_EQ(merged.model(0).time(0).backward(), 4);
  EXPECT_EQ(merged.model(0).time(1).samples(), 4U);
  EXPECT_EQ(merged.model(0).time(1).forward(), 5);
}

TEST(ProbeHostsTest, AllRanksGetOneProfile) {
  const Transports transports = MakeTransports(Wire::kThreads, 3);
  std::vector<v1::ClusterProfile> profiles(3);
  OnRanks(3, [&](int rank) {
    v1::DeviceProfile device = Device(1e9, 1);
    if (rank == 2) device.set_name("other");
    const auto joined =
        ProbeHosts(Host("same", device), *transports[rank], absl::Now() + absl::Minutes(2));
    ASSERT_TRUE(joined.ok()) << joined.status();
    profiles[rank] = *joined;
  });
  const v1::ClusterProfile& profile = profiles[0];
  EXPECT_TRUE(CheckProfile(profile).ok()) << CheckProfile(profile);
  ASSERT_EQ(profile.host_size(), 3);
  EXPECT_EQ(profile.host(1).name(), "same-1");
  EXPECT_EQ(profile.device_size(), 2);
  EXPECT_EQ(profile.link_size(), 3);
  EXPECT_EQ(profiles[1].SerializeAsString(), profile.SerializeAsString());
  EXPECT_EQ(profiles[2].SerializeAsString(), profile.SerializeAsString());
}

TEST(ProbeHostsTest, RejectsProfileWithoutHost) {
  const Transports transports = MakeTransports(Wire::kThreads, 2);
  OnRanks(2, [&](int rank) {
    const v1::ClusterProfile own = rank == 0 ? Host("a", Device(1e9, 1)) : v1::ClusterProfile();
    const auto joined = ProbeHosts(own, *transports[rank], absl::Now() + absl::Minutes(2));
    EXPECT_THAT(joined, IsError(kInvalidArgument, "does not contain one host"));
  });
}

TEST(ProbeHostsTest, MissingHostIsNamedAtTheMeetingTime) {
  const std::vector<std::string> peers = {"127.0.0.1:0", "127.0.0.1:1"};
  const absl::Time now = absl::Now();
  const absl::Status late =
      ProbeHosts(Host("a", Device(1e9, 1)), peers, /*rank=*/0,
                 /*meet_by=*/now + absl::Milliseconds(20), /*deadline=*/now + absl::Hours(1))
          .status();
  EXPECT_THAT(late, IsError(absl::StatusCode::kDeadlineExceeded, "rank 1 at 127.0.0.1:1"));
}

}  // namespace
}  // namespace cadre
