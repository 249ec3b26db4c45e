// Tests `cadre probe` with real processes: the profile, its use by `cadre plan`, the cache, and the
// links between hosts.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "plan/cluster_profile.h"
#include "proto/cadre/v1/profile.pb.h"
#include "tests/cluster/cluster.h"

namespace cadre::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Reserves ports on loopback for its lifetime: its sockets are bound to them but do not listen. A
// program that requests such a port by number, with SO_REUSEADDR, can listen on it. The kernel does
// not assign the port to a program that requests any free port.
class HeldPorts {
 public:
  explicit HeldPorts(int count) {
    for (int i = 0; i < count; ++i) Hold();
  }
  ~HeldPorts() {
    for (const int socket : sockets_) close(socket);
  }
  HeldPorts(const HeldPorts&) = delete;
  HeldPorts& operator=(const HeldPorts&) = delete;

  const std::vector<std::string>& addresses() const { return addresses_; }

 private:
  void Hold() {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    const int on = 1;
    const int held = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockets_.push_back(held);
    EXPECT_EQ(setsockopt(held, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
    EXPECT_EQ(bind(held, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(getsockname(held, reinterpret_cast<sockaddr*>(&address), &size), 0);
    addresses_.push_back(absl::StrCat("127.0.0.1:", ntohs(address.sin_port)));
  }

  std::vector<int> sockets_;
  std::vector<std::string> addresses_;
};

class ProbeTest : public ::testing::Test {
 protected:
  ProbeTest() { std::ofstream(spec()) << SpecText(SmallSpec({.epochs = 1})); }

  std::string spec() const { return folder_ / "run.textproto"; }
  std::string profile() const { return folder_ / "here.profile"; }

  std::string Probe(std::vector<std::string> flags, int exit_code = 0) const {
    std::vector<std::string> arguments = {"probe", spec(), "--cache", folder_ / "cache"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return RunCadre(arguments, exit_code);
  }

  static v1::ClusterProfile Read(const std::string& path) {
    const auto profile = ReadClusterProfile(path);
    EXPECT_TRUE(profile.ok()) << profile.status();
    return profile.value_or(v1::ClusterProfile());
  }

  const TemporaryFolder folder_;
};

TEST_F(ProbeTest, MeasuresOnce) {
  const std::string first = Probe({"--workers", "2", "-O", profile()});
  EXPECT_THAT(first, HasSubstr("2 workers timing the layers of"));
  EXPECT_THAT(first, HasSubstr("GFLOP/S"));
  const v1::ClusterProfile measured = Read(profile());
  ASSERT_EQ(measured.host_size(), 1);
  EXPECT_EQ(measured.host(0).workers(), 2U);
  EXPECT_GT(measured.host(0).inside().beta(), 0);
  ASSERT_EQ(measured.device_size(), 1);
  ASSERT_EQ(measured.device(0).model_size(), 1);
  EXPECT_GT(measured.device(0).model(0).time_size(), 0);
  EXPECT_GT(measured.device(0).flops(), 0);

  const std::string plan = RunCadre({"plan", spec(), "--workers", "2", "--profile", profile()});
  EXPECT_THAT(plan, HasSubstr("step"));

  // The file with cached times has the same bytes, and no worker is started.
  const std::string before = *ReadFile(profile());
  const std::string second = Probe({"--workers", "2", "-O", profile()});
  EXPECT_THAT(second, HasSubstr("using cached times"));
  EXPECT_EQ(*ReadFile(profile()), before);

  // The cache is not used for another number of workers, or with --fresh.
  EXPECT_THAT(Probe({"--workers", "1", "-O", profile()}), Not(HasSubstr("using cached times")));
  EXPECT_THAT(Probe({"--workers", "2", "-O", profile(), "--fresh"}),
              Not(HasSubstr("using cached times")));
}

TEST_F(ProbeTest, HostsMeasureTheirLinks) {
  const HeldPorts ports(3);
  const std::vector<std::string>& peers = ports.addresses();
  std::vector<std::thread> hosts;
  std::vector<std::string> output(peers.size());
  for (size_t host = 0; host < peers.size(); ++host) {
    hosts.emplace_back([&, host] {
      output[host] = Probe({"--peers", absl::StrJoin(peers, ","), "--rank", absl::StrCat(host),
                            "-O", profile(), "-o", "json", "--quiet"});
    });
  }
  for (std::thread& host : hosts) host.join();
  EXPECT_EQ(output[1], "");
  EXPECT_EQ(output[2], "");
  const nlohmann::json json = nlohmann::json::parse(output[0]);
  EXPECT_EQ(json.at("host").size(), 3U);
  const v1::ClusterProfile measured = Read(profile());
  ASSERT_EQ(measured.host_size(), 3);
  EXPECT_EQ(measured.link_size(), 3);
  EXPECT_EQ(measured.device_size(), 1) << "the hosts have the same device";
  for (const v1::HostLink& link : measured.link()) {
    EXPECT_GT(link.link().alpha(), 0);
    EXPECT_GT(link.link().beta(), 0);
    EXPECT_GT(link.link().processor(), 0);
  }
}

TEST_F(ProbeTest, MissingHostIsNamed) {
  const HeldPorts ports(2);
  const std::string output = Probe(
      {"--peers", absl::StrJoin(ports.addresses(), ","), "--meet-timeout", "1s", "-O", profile()},
      1);
  EXPECT_THAT(output,
              HasSubstr(absl::StrCat("no connection with rank 1 at ", ports.addresses()[1])));
  EXPECT_FALSE(std::filesystem::exists(profile()));
}

TEST_F(ProbeTest, InvalidFlagsAreRefused) {
  EXPECT_THAT(Probe({"--workers", "0"}, 2),
              HasSubstr("--workers takes a whole number of at least 1"));
  EXPECT_THAT(Probe({"--peers", "here:1"}, 2), HasSubstr("--peers must list at least two hosts"));
  EXPECT_THAT(Probe({"--peers", "here:1,there"}, 2), HasSubstr("'there' is not host:port"));
  EXPECT_THAT(Probe({"--peers", "a:1,b:2", "--rank", "2"}, 2), HasSubstr("--rank is 2"));
  EXPECT_THAT(Probe({"--peers", "a:1,b:2", "--meet-timeout", "0s"}, 2),
              HasSubstr("--meet-timeout takes a duration above 0"));
  EXPECT_THAT(Probe({"--groups", "2"}, 2), HasSubstr("--groups is not a flag of 'cadre probe'"));
  EXPECT_THAT(RunCadre({"probe", folder_ / "missing.textproto"}, 1),
              HasSubstr("missing.textproto"));
  // A damaged cache is measured again.
  ASSERT_THAT(Probe({"-O", profile()}), HasSubstr("1 worker timing"));
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "cache")) {
    std::ofstream(entry.path()) << "host { nme: 'x' }";
  }
  const std::string again = Probe({"-O", profile()});
  EXPECT_THAT(again, HasSubstr("HostProfile has no field 'nme'"));
  EXPECT_THAT(again, HasSubstr("1 worker timing"));
}

}  // namespace
}  // namespace cadre::testing
