#include "base/rpc/bounded_parse.h"

#include <grpcpp/support/slice.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/rounds.pb.h"
#include "tests/base/expect.h"

namespace cadre {
namespace {

constexpr int64_t kMiB = 1 << 20;

grpc::ByteBuffer BufferOf(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return {&slice, 1};
}

std::string Repeat(absl::string_view text, int times) {
  std::string repeated;
  for (int i = 0; i < times; ++i) absl::StrAppend(&repeated, text);
  return repeated;
}

// Bytes of a MemberMessage with a Hello of this content.
std::string HelloOf(const std::string& fields) {
  std::string bytes = "\x0a";
  size_t left = fields.size();
  for (; left > 127; left >>= 7) bytes.push_back(static_cast<char>(0x80 | (left & 0x7f)));
  bytes.push_back(static_cast<char>(left));
  return bytes + fields;
}

int64_t Resident() {
  std::ifstream status("/proc/self/statm");
  int64_t all = 0;
  int64_t resident = 0;
  status >> all >> resident;
  return resident * 4096;
}

TEST(BoundedParseTest, AcceptsOrdinaryMessages) {
  v1::StageRequest request;
  v1::ContributionHeader& header = *request.mutable_header();
  header.set_run("run-1");
  for (int i = 0; i < 1 << 16; ++i) {
    v1::Range& range = *header.add_ranges();
    range.set_tensor(i);
    range.set_begin(uint64_t{1} << 40);
    range.set_end((uint64_t{1} << 40) + i);
  }
  v1::StageRequest parsed;
  ASSERT_TRUE(ParseWithin(16 * kMiB, Serialize(request), &parsed).ok());
  EXPECT_EQ(parsed.SerializeAsString(), request.SerializeAsString());
}

TEST(BoundedParseTest, EstimatesNoLessThanTheMemory) {
  v1::MemberMessage message;
  auto& counters = *message.mutable_heartbeat()->mutable_counters();
  for (int i = 0; i < 1000; ++i) counters[std::to_string(i)] = i;
  v1::MemberMessage traced;
  for (int i = 0; i < 1000; ++i) traced.mutable_traced()->add_events()->set_name("a");
  v1::MemberMessage suspects;
  for (int i = 0; i < 1000; ++i) suspects.mutable_group_failed()->add_suspects(1);
  for (const v1::MemberMessage& each : {message, traced, suspects}) {
    v1::MemberMessage parsed;
    const auto memory = static_cast<int64_t>(each.SpaceUsedLong());
    EXPECT_THAT(ParseWithin(memory - 1, Serialize(each), &parsed),
                IsError(absl::StatusCode::kResourceExhausted, "memory"));
    EXPECT_TRUE(ParseWithin(8 * memory, Serialize(each), &parsed).ok());
  }
}

// Each of these messages would take 80 MB or more.
TEST(BoundedParseTest, HostileMessagesTakeNoMemory) {
  const std::string empty_shards = HelloOf(Repeat(std::string("\x5a\x00", 2), 4 << 20));
  const std::string unknown = Repeat("\xf8\x07\x01", 2 << 20);
  const std::string unknown_texts = Repeat(std::string("\xfa\x07\x00", 3), 2 << 20);
  const std::string groups = Repeat("\xfb\x07\xfc\x07", 2 << 20);
  const int64_t before = Resident();
  for (const std::string* bytes : {&empty_shards, &unknown, &unknown_texts}) {
    v1::MemberMessage message;
    EXPECT_THAT(ParseWithin(64 * kMiB, BufferOf(*bytes), &message),
                IsError(absl::StatusCode::kResourceExhausted, "memory"));
  }
  v1::MemberMessage message;
  EXPECT_THAT(ParseWithin(64 * kMiB, BufferOf(groups), &message),
              IsError(absl::StatusCode::kInvalidArgument, "malformed"));
  EXPECT_LT(Resident() - before, 24 * kMiB);
}

TEST(BoundedParseTest, MalformedMessages) {
  v1::MemberMessage message;
  // A length beyond the end, a number without its bytes, and nothing at all.
  for (const char* bytes : {"\x0a\x05", "\x08", "\x0a"}) {
    EXPECT_THAT(ParseWithin(kMiB, BufferOf(bytes), &message),
                IsError(absl::StatusCode::kInvalidArgument, ""));
  }
  EXPECT_TRUE(ParseWithin(kMiB, BufferOf(""), &message).ok());
}

}  // namespace
}  // namespace cadre
