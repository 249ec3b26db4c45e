// Profiles are unchanged after printing and reading; every kind of error is reported with its
// position.
#include "plan/cluster_profile.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/base/temporary_folder.h"
#include "tests/plan/profile.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

constexpr char kGood[] = R"(host {
  name: "a"
  workers: 2
  device: "cpu"
  cores: 2
  inside { alpha: 1e-06 beta: 1e-10 gamma: 1e-10 kind: SHARED_MEMORY }
}
host { name: "rack" count: 3 device: "cpu" memory_bytes: 1000000 }
link { from: "a" to: "rack" link { alpha: 5e-05 beta: 8e-09 } }
link { from: "rack" to: "rack" link {
  alpha: 4e-05 beta: 8e-09
  samples { algorithm: RING ranks: 3 bytes: 1024 seconds: 0.0001 }
} }
device {
  name: "cpu"
  flops: 5e10
  update_seconds: 1e-09
  copy_seconds: 2e-10
  model {
    model: "0123456789abcdef"
    name: "lenet"
    time { layer: "conv1" samples: 32 forward: 0.001 backward: 0.002 }
    time { layer: "conv1" samples: 16 rows: 2 forward: 0.0005 backward: 0.001 }
  }
}
)";

absl::StatusOr<v1::ClusterProfile> Read(const std::string& text) {
  const TemporaryFolder folder;
  return ReadClusterProfile(folder.Write("rack.profile", text));
}

// In the valid text, `from` is replaced by `to`; reading it fails with a message that contains
// `error`.
struct Mistake {
  std::string from, to, error;
};
void ExpectErrors(const std::vector<Mistake>& mistakes) {
  for (const auto& [from, to, error] : mistakes) {
    EXPECT_THAT(kGood, HasSubstr(from));
    const absl::Status status = Read(absl::StrReplaceAll(kGood, {{from, to}})).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << to;
    EXPECT_THAT(std::string(status.message()), HasSubstr(error));
  }
}

TEST(ClusterProfileTest, PrintsAndReads) {
  v1::ClusterProfile profile = testing::ProfileOf(kGood);
  // A number that needs all its digits.
  profile.mutable_link(0)->mutable_link()->set_beta(1.0 / 3);
  const std::string text = PrintClusterProfile(profile);
  EXPECT_THAT(text, HasSubstr("cadre plan"));
  EXPECT_THAT(text, HasSubstr("time { layer: \"conv1\" samples: 32 forward: 0.001 "));
  const auto again = Read(text);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(*again, profile)) << text;
}

TEST(ClusterProfileTest, ErrorsNameFile) {
  const TemporaryFolder folder;
  const std::string path = folder / "profile";
  const absl::Status missing = ReadClusterProfile(path).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr(path));
  folder.Write("profile", "host { nme: 'a' }");
  EXPECT_EQ(std::string(ReadClusterProfile(path).status().message()),
            absl::StrCat(path, ":1:8: HostProfile has no field 'nme'; did you mean 'name'?"));
}

TEST(ClusterProfileTest, RejectsInvalidNumbers) {
  ExpectErrors({
      {"workers: 2", "workers: -2", "rack.profile:3:12: "},
      {"alpha: 1e-06", "alpha: -1e-06",
       "rack.profile:6:12: host[0].inside.alpha: is -1e-06, must be finite and not negative"},
      {"beta: 1e-10", "beta: nan",
       "rack.profile:6:25: host[0].inside.beta: is nan, must be a finite number above 0"},
      {"alpha: 5e-05 beta: 8e-09", "alpha: 5e-05",
       "rack.profile:9:29: link[0].link.beta: is 0, must be"},
      {"flops: 5e10", "flops: 0", "device[0].flops: is 0"},
      {"update_seconds: 1e-09", "update_seconds: inf", "device[0].update_seconds: is inf"},
      {"copy_seconds: 2e-10", "copy_seconds: -1", "device[0].copy_seconds: is -1"},
      {"forward: 0.0005", "forward: -0.0005",
       "rack.profile:23:47: device[0].model[0].time[1].forward: is -0.0005"},
      {"samples: 16", "samples: 0", "device[0].model[0].time[1].samples: is 0"},
      {"seconds: 0.0001", "seconds: 0",
       "rack.profile:12:3: link[1].link.samples[0]: invalid sample: 0 seconds"},
      // Numbers whose products would overflow.
      {"count: 3", "count: 1048577", "host[1].count: is 1048577, must be at most 1048576"},
      {"workers: 2", "workers: 4294967295",
       "host[0].workers: is 4294967295, must be at most 1048576"},
      {"workers: 2", "workers: 1048576 count: 1025", "host: more than 1073741824 workers in total"},
      {"beta: 1e-10", "beta: 8e300", "host[0].inside.beta: is 8e+300, must be at most 1e+12"},
      {"flops: 5e10", "flops: 1e-300", "device[0].flops: is 1e-300"},
  });
}

TEST(ClusterProfileTest, RejectsMissingAndDuplicateNames) {
  ExpectErrors({
      {"name: \"rack\" count: 3", "name: \"a\" count: 3", "host[1].name: 'a' is used twice"},
      {"name: \"rack\" count: 3", "count: 3", "rack.profile:8:1: host[1].name: is missing"},
      {"count: 3 device: \"cpu\"", "count: 3 device: \"gpu\"",
       "host[1].device: unknown device 'gpu'; known devices: cpu"},
      {"  name: \"cpu\"", "", "device[0].name: is missing"},
      {"from: \"a\" to: \"rack\"", "from: \"a\" to: \"rick\"", "link[0].to: unknown host 'rick'"},
      {"samples: 16 rows: 2", "samples: 32 rows: 1 outs: 1",
       "device[0].model[0].time[1]: the part of layer 'conv1' is timed twice"},
  });
}

TEST(ClusterProfileTest, RequiresOneLinkPerPair) {
  ExpectErrors({
      {"link { from: \"a\" to: \"rack\" link { alpha: 5e-05 beta: 8e-09 } }", "",
       "link: no link between 'a' and 'rack'; add links or a default_link"},
      {"from: \"rack\" to: \"rack\"", "from: \"rack\" to: \"a\"",
       "link[1]: 'rack' and 'a' have two links; only one is allowed"},
      {"from: \"a\" to: \"rack\"", "from: \"a\" to: \"a\"",
       "link[0]: 'a' is a single host; the link between its workers is its `inside`"},
      {"inside { alpha: 1e-06 beta: 1e-10 gamma: 1e-10 kind: SHARED_MEMORY }", "",
       "rack.profile:1:1: host[0].inside: is missing: 'a' has 2 workers and needs the link between "
       "them"},
  });
  v1::ClusterProfile profile = testing::ProfileOf(kGood);
  profile.clear_link();
  EXPECT_THAT(std::string(CheckProfile(profile).message()),
              HasSubstr("no link between 'a' and 'rack' and 1 other pairs"));
  profile.mutable_default_link()->set_beta(1e-9);
  EXPECT_EQ(CheckProfile(profile), absl::OkStatus());
}

TEST(ClusterProfileTest, RejectsEmptyProfile) {
  EXPECT_EQ(std::string(CheckProfile(v1::ClusterProfile()).message()),
            "host: is missing; a cluster has at least one");
}

TEST(ClusterProfileTest, ReportsAllProblems) {
  v1::ClusterProfile profile = testing::ProfileOf(kGood);
  profile.mutable_device(0)->set_flops(-std::numeric_limits<double>::infinity());
  profile.mutable_host(1)->set_device("");
  const std::string message(CheckProfile(profile).message());
  EXPECT_THAT(message, HasSubstr("device[0].flops: is -inf"));
  EXPECT_THAT(message, HasSubstr("host[1].device: unknown device ''"));
}

TEST(ModelKeyTest, DependsOnLayersAndInput) {
  v1::Model model;
  model.mutable_input()->set_channels(3);
  model.add_layer()->set_name("a");
  const std::string key = ModelKey(model);
  EXPECT_EQ(key.size(), 16U);
  EXPECT_EQ(ModelKey(v1::Model(model)), key);
  v1::Model wider = model;
  wider.mutable_input()->set_channels(4);
  EXPECT_NE(ModelKey(wider), key);
  v1::Model deeper = model;
  deeper.add_layer()->set_name("b");
  EXPECT_NE(ModelKey(deeper), key);
}

}  // namespace
}  // namespace cadre
