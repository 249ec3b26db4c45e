#include "coordinator/service/member_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/base/expect.h"

namespace cadre {
namespace {

using ::testing::EndsWith;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(MemberTextTest, Hello) {
  v1::MemberMessage message;
  v1::Hello& hello = *message.mutable_hello();
  hello.set_name("worker-0");
  hello.set_address("[::1]:7002");
  hello.set_device("cuda:NVIDIA H200");
  EXPECT_EQ(LimitText(message), absl::OkStatus());
  hello.set_name("\x1b[2Jworker");
  EXPECT_THAT(LimitText(message), IsError(kInvalid, "hello.name '\\x1b[2Jworker'"));
  hello.set_name("Worker");
  EXPECT_THAT(LimitText(message), IsError(kInvalid, "hello.name 'Worker'"));
  hello.set_name("worker-0");
  hello.set_host("a\nb");
  EXPECT_THAT(LimitText(message), IsError(kInvalid, "hello.host 'a\\nb'"));
  hello.set_host("");
  hello.set_address(std::string(301, 'a'));
  EXPECT_THAT(LimitText(message), IsError(kInvalid, "hello.address has 301 bytes"));
  hello.clear_address();
  hello.mutable_reservation()->set_program("a\nI1126 stream 1 ended");
  EXPECT_THAT(LimitText(message), IsError(kInvalid, "hello.reservation.program 'a\\nI1126"));
  // A key of the store contains it, and a database's texts have no zero byte.
  hello.mutable_reservation()->set_program(std::string("a\0b", 3));
  EXPECT_THAT(LimitText(message), IsError(kInvalid, "hello.reservation.program 'a\\x00b'"));
  hello.mutable_reservation()->clear_program();
  hello.mutable_reservation()->set_run(std::string(301, 'a'));
  EXPECT_THAT(LimitText(message), IsError(kInvalid, "hello.reservation.run has 301 bytes"));
}

TEST(MemberTextTest, ReasonsAreShortened) {
  const std::string reason = "\x1b]0;" + std::string(7 << 20, 'x');
  v1::MemberMessage failed;
  failed.mutable_group_failed()->set_reason(reason);
  v1::MemberMessage goodbye;
  goodbye.mutable_goodbye()->set_reason(reason);
  v1::MemberMessage opened;
  opened.mutable_run_opened()->set_error(reason);
  v1::MemberMessage applied;
  applied.mutable_applied()->set_error(reason);
  v1::MemberMessage restaged;
  restaged.mutable_restaged()->set_error(reason);
  v1::MemberMessage heartbeat;
  heartbeat.mutable_heartbeat()->add_fallbacks()->set_reason(reason);
  v1::MemberMessage prepared;
  prepared.mutable_prepared()->set_data_left_out(reason);
  for (v1::MemberMessage* message :
       {&failed, &goodbye, &opened, &applied, &restaged, &heartbeat, &prepared}) {
    EXPECT_EQ(LimitText(*message), absl::OkStatus());
    EXPECT_LE(message->ByteSizeLong(), 1100U) << message->body_case();
  }
  EXPECT_THAT(goodbye.goodbye().reason(), EndsWith("x... (7340036 bytes)"));
  EXPECT_EQ(goodbye.goodbye().reason().substr(0, 7), "\\x1b]0;");
}

TEST(MemberTextTest, OtherTexts) {
  v1::MemberMessage message;
  message.mutable_prepared()->add_held()->set_parameter("conv/weight");
  EXPECT_EQ(LimitText(message), absl::OkStatus());
  message.mutable_prepared()->add_held()->set_parameter(std::string(5000, 'p'));
  EXPECT_THAT(LimitText(message),
              IsError(kInvalid, "prepared.held[1].parameter has 5000 bytes; at most 4096"));
  v1::MemberMessage heartbeat;
  (*heartbeat.mutable_heartbeat()->mutable_counters())[std::string(1 << 20, 'k')] = 1;
  EXPECT_THAT(LimitText(heartbeat), IsError(kInvalid, "heartbeat.counters[0].key has 1048576"));
}

}  // namespace
}  // namespace cadre
