// The messages with which ranks connect: round trips, incomplete messages and malformed messages.
#include "worker/transport/handshake.h"

#include <gtest/gtest.h>

#include "worker/transport/host_identity.h"
#include "worker/transport/tcp_link.h"

namespace cadre {
namespace {

Greeting SomeGreeting() {
  return {.group = {.schema_hash = 0x1234567890abcdef,
                    .run = "a run",
                    .group = 3,
                    .generation = 1ULL << 40},
          .from = 4,
          .to = 2,
          .ranks = 5,
          .purpose = {.channel = 1, .connection = 7},
          .host = 0xfedcba0987654321,
          .wakeups = {"left", "middle", "right"}};
}

TEST(GreetingTest, RoundTrip) {
  const Greeting greeting = SomeGreeting();
  const auto whole = DecodeGreeting(Encode(greeting));
  ASSERT_TRUE(whole.ok() && whole->has_value());
  EXPECT_EQ((*whole)->group, greeting.group);
  EXPECT_EQ((*whole)->from, 4U);
  EXPECT_EQ((*whole)->to, 2U);
  EXPECT_EQ((*whole)->ranks, 5U);
  EXPECT_EQ((*whole)->purpose, greeting.purpose);
  EXPECT_EQ((*whole)->host, greeting.host);
  EXPECT_EQ((*whole)->wakeups, greeting.wakeups);
  EXPECT_TRUE((*whole)->shares_memory());
  EXPECT_FALSE(Greeting{}.shares_memory());
}

TEST(GreetingTest, PrefixesAndExtensions) {
  const std::string bytes = Encode(SomeGreeting());
  for (size_t length = 0; length < bytes.size(); ++length) {
    const auto part = DecodeGreeting(absl::string_view(bytes).substr(0, length));
    ASSERT_TRUE(part.ok());
    EXPECT_FALSE(part->has_value()) << length;
  }
  EXPECT_FALSE(DecodeGreeting(bytes + "x").ok());
  EXPECT_FALSE(DecodeGreeting("x" + bytes).ok());
}

// A greeting is rejected as soon as the length of a text is too large, so that a listener does not
// buffer invalid bytes.
TEST(GreetingTest, RejectsOversizedText) {
  Greeting greeting = SomeGreeting();
  greeting.group.run.assign(kMaxText, 'r');
  const std::string longest = Encode(greeting);
  EXPECT_TRUE(DecodeGreeting(longest).value().has_value());
  const size_t length_at = longest.find("rrr") - 2;
  std::string longer = longest.substr(0, length_at) + "\xff\xff";
  EXPECT_FALSE(DecodeGreeting(longer).ok());
  longer[length_at] = 1;
  longer[length_at + 1] = 4;
  EXPECT_FALSE(DecodeGreeting(longer).ok());
}

TEST(GreetingTest, TruncatesLongTexts) {
  Greeting greeting = SomeGreeting();
  greeting.group.run.assign(5000, 'r');
  greeting.wakeups[1].assign(5000, 'b');
  const auto whole = DecodeGreeting(Encode(greeting));
  ASSERT_TRUE(whole.ok() && whole->has_value());
  EXPECT_EQ((*whole)->group.run.size(), kMaxText);
  EXPECT_EQ((*whole)->wakeups[1].size(), kMaxName);
}

// `bytes` is exactly one message with a head.
template <typename Decode>
void ExpectExact(const std::string& bytes, Decode decode) {
  EXPECT_EQ(MessageBytes(bytes), bytes.size());
  EXPECT_TRUE(decode(bytes).ok());
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_EQ(decode(bytes.substr(0, length)).status().code(), absl::StatusCode::kInvalidArgument)
        << length;
  }
  EXPECT_FALSE(decode(bytes + "x").ok());
  // The fields end before the message.
  std::string longer = bytes + "x";
  ++longer[0];
  EXPECT_FALSE(decode(longer).ok());
}

TEST(AnswerTest, RoundTrip) {
  const std::string bytes = Encode(Answer{
      .code = Answer::Code::kWrongRank, .host = 99, .shares_memory = true, .reason = "elsewhere"});
  ExpectExact(bytes, [](absl::string_view text) { return DecodeAnswer(text); });
  const auto answer = DecodeAnswer(bytes);
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->code, Answer::Code::kWrongRank);
  EXPECT_EQ(answer->host, 99U);
  EXPECT_TRUE(answer->shares_memory);
  EXPECT_EQ(answer->reason, "elsewhere");
}

TEST(AnswerTest, RejectsUnknownValues) {
  std::string bytes = Encode(Answer{});
  for (const char code : {0, 5, 9, -1}) {
    bytes[kHeadBytes] = code;
    EXPECT_FALSE(DecodeAnswer(bytes).ok());
  }
  bytes = Encode(Answer{});
  bytes[kHeadBytes + 9] = 2;
  EXPECT_FALSE(DecodeAnswer(bytes).ok());
}

TEST(OfferTest, RoundTrip) {
  const std::string bytes = Encode(Offer{.description = "here", .wakeups = {"a", "b", "c"}});
  ExpectExact(bytes, [](absl::string_view text) { return DecodeOffer(text); });
  const auto offer = DecodeOffer(bytes);
  ASSERT_TRUE(offer.ok());
  EXPECT_EQ(offer->description, "here");
  EXPECT_EQ(offer->wakeups, (WakeupNames{"a", "b", "c"}));
}

TEST(SettledTest, RoundTrip) {
  for (uint8_t connections = 0; connections <= kMaxConnections; ++connections) {
    const std::string bytes = Encode(Settled{.connections = connections});
    ExpectExact(bytes, [](absl::string_view text) { return DecodeSettled(text); });
    EXPECT_EQ(DecodeSettled(bytes)->connections, connections);
  }
  EXPECT_FALSE(DecodeSettled(Encode(Settled{.connections = kMaxConnections + 1})).ok());
}

TEST(HostIdentityTest, IsStable) { EXPECT_EQ(HostIdentity(), HostIdentity()); }

}  // namespace
}  // namespace cadre
