#include "base/host_port.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/base/expect.h"

namespace cadre {
namespace {

TEST(HostPortTest, Parts) {
  const auto six = SplitHostPort("[::1]:80", "address");
  ASSERT_TRUE(six.ok());
  EXPECT_EQ(six->host, "[::1]");
  EXPECT_EQ(six->port, 80);
  for (const char* text : {"", ":80", "host", "host:x", "host:-1", "host:65536"}) {
    EXPECT_THAT(SplitHostPort(text, "the address"),
                IsError(kInvalidArgument, absl::StrCat("the address '", text, "'")));
  }
}

}  // namespace
}  // namespace cadre
