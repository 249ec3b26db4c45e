// Which channels use a proxy. tests/deploy/network_test.py connects through a real one.
#include "base/rpc/http_proxy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/rpc/address_list.h"
#include "base/rpc/credentials.h"
#include "base/rpc/daemon.h"
#include "base/rpc/grpc_channel.h"
#include "proto/cadre/v1/control.grpc.pb.h"
#include "tests/base/expect.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class HttpProxyTest : public ::testing::Test {
 protected:
  HttpProxyTest() { Unset(); }
  ~HttpProxyTest() override { Unset(); }

 private:
  static void Unset() {
    for (const char* name :
         {"CADRE_PROXY", "http_proxy", "https_proxy", "grpc_proxy", "no_proxy", "no_grpc_proxy"}) {
      unsetenv(name);
    }
  }
};

TEST_F(HttpProxyTest, VariablesOfDownloadsAreIgnored) {
  for (const char* name : {"http_proxy", "https_proxy", "grpc_proxy"}) {
    setenv(name, "http://127.0.0.1:9", 1);
  }
  v1::Status::Service service;
  const auto daemon = Daemon::Start({}, {&service});
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  const auto channel = MakeChannel((*daemon)->address(), Plane::kControl);
  EXPECT_TRUE(channel->WaitForConnected(absl::ToChronoTime(absl::Now() + absl::Seconds(20))));
}

TEST_F(HttpProxyTest, LoopbackIsReachedDirectly) {
  setenv("CADRE_PROXY", "http://user:secret@proxy.example.com:3128", 1);
  EXPECT_TRUE(CheckHttpProxy().ok());
  EXPECT_EQ(HttpProxyOf("127.0.0.1:7000"), "");
  EXPECT_EQ(HttpProxyOf("localhost:7000"), "");
  EXPECT_EQ(HttpProxyOf("[::1]:7000"), "");
  EXPECT_EQ(HttpProxyOf("10.0.0.5:7000"), "http://user:secret@proxy.example.com:3128");
  EXPECT_EQ(HttpProxyOf("127.0.0.1.example.com:7000"), HttpProxyOf("10.0.0.5:7000"));
  EXPECT_EQ(ThroughHttpProxy("10.0.0.5:7000"),
            " through the proxy proxy.example.com:3128 of CADRE_PROXY");
  EXPECT_EQ(ThroughHttpProxy("127.0.0.1:7000"), "");
}

TEST_F(HttpProxyTest, OtherFormsAreRefused) {
  for (const char* value : {"proxy:3128", "https://proxy:3128", "http://proxy", "http://proxy:0",
                            "http://proxy:3128/", "socks5://proxy:1080", "http://u:secret@"}) {
    setenv("CADRE_PROXY", value, 1);
    const absl::Status refused = Credentials::FromFlags("", /*insecure=*/true).status();
    EXPECT_THAT(refused, IsError(kInvalidArgument, "CADRE_PROXY")) << value;
    EXPECT_THAT(std::string(refused.message()), Not(HasSubstr("secret"))) << value;
  }
  setenv("CADRE_PROXY", "", 1);
  EXPECT_TRUE(CheckHttpProxy().ok());
}

TEST(AddressesTest, ListsHaveNoEmptyAddress) {
  EXPECT_TRUE(CheckAddresses("--coordinator", "a:1").ok());
  EXPECT_TRUE(CheckAddresses("--coordinator", "a:1, b:2").ok());
  for (const char* list : {"", ",", "a:1,", ",a:1", "a:1,,b:2", "a:1, "}) {
    EXPECT_THAT(CheckAddresses("--coordinator", list),
                IsError(kInvalidArgument, absl::StrCat("--coordinator '", list, "' has an empty")));
  }
}

}  // namespace
}  // namespace cadre
