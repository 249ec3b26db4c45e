// What a live cluster refuses from peers that are wrong, by name, counted, and unharmed.
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/crc32c.h"
#include "base/rpc/grpc_channel.h"
#include "base/rpc/grpc_status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/cadre/v1/membership.grpc.pb.h"
#include "proto/cadre/v1/rounds.grpc.pb.h"
#include "proto/schema_hash.h"
#include "server/client/refusal.h"
#include "tests/cluster/cluster.h"

namespace cadre::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr absl::Duration kCall = absl::Seconds(20);
constexpr absl::Duration kLong = absl::Seconds(120);

// --- A peer at the coordinator's door

// Sends the messages on a stream of its own and returns the refusal that ends it;
// REFUSAL_UNSPECIFIED if it is told to leave a place, or not refused. Takes no care of its own
// limits, as a stranger may not.
v1::Refused Join(const std::string& coordinator, const std::vector<v1::MemberMessage>& messages) {
  const auto channel = grpc::CreateChannel(coordinator, grpc::InsecureChannelCredentials());
  const auto stub = v1::Membership::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kCall));
  const auto stream = stub->Join(&context);
  for (const v1::MemberMessage& message : messages) stream->Write(message);
  v1::CoordinatorMessage answer;
  v1::Refused refused;
  while (stream->Read(&answer)) {
    if (answer.has_release()) break;
    if (!answer.has_refused()) continue;
    refused = answer.refused();
    break;
  }
  context.TryCancel();
  stream->Finish();
  return refused;
}

v1::MemberMessage GoodHello(const std::string& name) {
  v1::MemberMessage message;
  v1::Hello& hello = *message.mutable_hello();
  hello.set_schema_hash(SchemaHash());
  hello.set_role(v1::ROLE_WORKER);
  hello.set_name(name);
  hello.set_incarnation(name + "-1");
  hello.set_address("127.0.0.1:1");
  hello.set_host("localhost");
  hello.set_device("cpu:1");
  hello.set_device_kind(v1::Cluster::CPU);
  return message;
}

TEST(MembershipRefusalsTest, InvalidMembersAreRefused) {
  Cluster cluster;
  ASSERT_EQ(cluster.StartCoordinator(), absl::OkStatus());

  v1::MemberMessage other_schema = GoodHello("other-schema");
  other_schema.mutable_hello()->set_schema_hash(SchemaHash() + 1);
  v1::Refused refused = Join(cluster.coordinator(), {other_schema});
  EXPECT_EQ(refused.refusal(), v1::REFUSAL_SCHEMA);
  EXPECT_NE(refused.reason(), "");

  v1::MemberMessage heartbeat;
  heartbeat.mutable_heartbeat();
  EXPECT_EQ(Join(cluster.coordinator(), {heartbeat}).refusal(), v1::REFUSAL_OUT_OF_ORDER);
  EXPECT_EQ(Join(cluster.coordinator(), {GoodHello("twice"), GoodHello("twice")}).refusal(),
            v1::REFUSAL_OUT_OF_ORDER);

  v1::MemberMessage unknown = GoodHello("unknown");
  unknown.mutable_hello()->set_member_id("m-4711");
  EXPECT_EQ(Join(cluster.coordinator(), {unknown}).refusal(), v1::REFUSAL_UNKNOWN_MEMBER);

  v1::MemberMessage stale;
  v1::RankSlot& place = *stale.mutable_progress()->mutable_place();
  place.set_run("run-99");
  place.set_generation(1);
  // Answered with Release: the member has a place to leave, and stays a member.
  EXPECT_EQ(Join(cluster.coordinator(), {GoodHello("stale"), stale}).refusal(),
            v1::REFUSAL_UNSPECIFIED);

  v1::MemberMessage large = GoodHello("large");
  large.mutable_hello()->set_host(std::string(kMaxMessageBytes + 1, 'x'));
  EXPECT_EQ(Join(cluster.coordinator(), {large}).refusal(), v1::REFUSAL_OVERSIZED);

  const auto status = cluster.client().Status();
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(Counter(*status, "refused_schema"), 1u);
  EXPECT_EQ(Counter(*status, "refused_out_of_order"), 2u);
  EXPECT_EQ(Counter(*status, "refused_unknown_member"), 1u);
  EXPECT_EQ(Counter(*status, "refused_oversized"), 1u);
  EXPECT_EQ(Counter(*status, "refused_unknown_run") + Counter(*status, "refused_stale_generation"),
            1u);
}

TEST(MembershipRefusalsTest, OtherSchemaRunIsRefused) {
  Cluster cluster;
  ASSERT_EQ(cluster.StartCoordinator(), absl::OkStatus());
  const auto stub = v1::Runs::NewStub(MakeChannel(cluster.coordinator(), Plane::kControl));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kCall));
  v1::SubmitRequest request;
  request.set_schema_hash(SchemaHash() ^ 1);
  *request.mutable_spec() = SmallSpec({.epochs = 1});
  v1::SubmitReply reply;
  EXPECT_EQ(stub->Submit(&context, request, &reply).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  v1::RunSpec wrong = SmallSpec({.epochs = 1});
  wrong.mutable_schedule()->set_base_rate(-1);
  const auto refused = cluster.client().Submit(wrong);
  EXPECT_TRUE(absl::IsInvalidArgument(refused.status())) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("base_rate"));
  EXPECT_TRUE(absl::IsNotFound(cluster.client().Stop("run-4711", "")));
  EXPECT_TRUE(absl::IsNotFound(cluster.client().Status("run-4711").status()));
}

// --- A peer at an aggregator's door

// Stages one chunk of `values` under `header`; `spoil` may damage it first.
absl::Status Stage(const std::string& aggregator, v1::ContributionHeader header,
                   const std::string& data, uint32_t crc) {
  const auto stub = v1::Rounds::NewStub(MakeChannel(aggregator, Plane::kBulk));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kCall));
  const auto stream = stub->Stage(&context);
  v1::StageRequest request;
  *request.mutable_header() = std::move(header);
  v1::StageReply reply;
  if (stream->Write(request) && stream->Read(&reply)) {
    request.mutable_chunk()->set_index(reply.resume().next_chunk());
    request.mutable_chunk()->set_data(data);
    request.mutable_chunk()->set_crc32c(crc);
    if (stream->Write(request)) stream->Read(&reply);
  }
  stream->WritesDone();
  return FromGrpc(stream->Finish());
}

// A generation above all that the coordinator will give out here: staged in its name, a
// contribution is not stale.
constexpr uint32_t kNeverGiven = 1000;

// A run of two groups of one worker of which only the first exists: what is staged in the name of
// the second disturbs nobody's contribution.
class RoundsRefusalsTest : public ::testing::Test {
 protected:
  void Begin(uint32_t steps) {
    ASSERT_EQ(cluster_.StartAll(1, 1), absl::OkStatus());
    const auto run = cluster_.client().Submit(SmallSpec({.groups = 2,
                                                         .ranks = 1,
                                                         .aggregators = 1,
                                                         .every_steps = 200,
                                                         .steps = steps,
                                                         .rejoin_wait_ms = 500}));
    ASSERT_TRUE(run.ok()) << run.status();
    run_ = *run;
    Refresh(2);
    lineage_ = FindRun(status_, run_)->lineage();
    aggregator_ = status_.aggregators(0).member().address();
  }

  // Asks for the status until the run has this version.
  void Refresh(uint32_t version) {
    const auto status = cluster_.Await(
        [&](const v1::StatusReply& seen) {
          const v1::RunStatus* run = FindRun(seen, run_);
          return run != nullptr && run->version() >= version;
        },
        kLong, absl::StrCat("version ", version));
    ASSERT_TRUE(status.ok()) << status.status();
    status_ = *status;
    ASSERT_EQ(FindRun(status_, run_)->state(), v1::RUN_STATE_RUNNING) << "the run is too short";
  }

  // The second group's contribution to the round that is open now.
  v1::ContributionHeader Header() {
    const uint32_t version = FindRun(status_, run_)->version();
    v1::ContributionHeader header;
    header.set_schema_hash(SchemaHash());
    header.set_run(run_);
    header.set_lineage(lineage_);
    header.set_group(1);
    header.set_generation(kNeverGiven);
    header.set_round(version + 1);
    header.set_base_version(version);
    header.set_samples(32);
    header.set_codec(v1::CODEC_FP32);
    header.set_chunk_elements(4);
    v1::Range* range = header.add_ranges();
    range->set_end(4);
    return header;
  }

  v1::Refusal Refusal(const v1::ContributionHeader& header) {
    const absl::Status status = Stage(aggregator_, header, data_, Crc32c(data_));
    EXPECT_FALSE(status.ok());
    return RefusalOf(status);
  }

  // Until the counter is told by the aggregator's next heartbeat.
  void AwaitCounter(const std::string& name, uint64_t least) {
    const auto status =
        cluster_.Await([&](const v1::StatusReply& seen) { return Counter(seen, name) >= least; },
                       absl::Seconds(20), name);
    EXPECT_TRUE(status.ok()) << status.status();
  }

  // Runs that need not end take so many steps.
  static constexpr uint32_t kEndless = 10'000'000;

  Cluster cluster_;
  std::string run_;
  std::string lineage_;
  std::string aggregator_;
  v1::StatusReply status_;
  const std::string data_ = std::string(16, '\0');
};

TEST_F(RoundsRefusalsTest, InvalidContributionsAreRefused) {
  ASSERT_NO_FATAL_FAILURE(Begin(kEndless));
  v1::ContributionHeader header = Header();
  header.set_schema_hash(SchemaHash() + 1);
  EXPECT_EQ(Refusal(header), v1::REFUSAL_SCHEMA);

  header = Header();
  header.set_run("run-4711");
  EXPECT_EQ(Refusal(header), v1::REFUSAL_UNKNOWN_RUN);

  header = Header();
  header.set_lineage("another");
  EXPECT_EQ(Refusal(header), v1::REFUSAL_WRONG_LINEAGE);

  // Generation 0 is before all.
  header = Header();
  header.set_group(0);
  header.set_generation(0);
  EXPECT_EQ(Refusal(header), v1::REFUSAL_STALE_GENERATION);

  header = Header();
  header.set_round(1);
  header.set_base_version(0);
  EXPECT_EQ(Refusal(header), v1::REFUSAL_CLOSED_ROUND);

  header = Header();
  header.set_round(header.round() + 100000);
  header.set_base_version(header.round() - 1);
  EXPECT_EQ(Refusal(header), v1::REFUSAL_WRONG_BASE);

  header = Header();
  header.mutable_ranges(0)->set_end(uint64_t{1} << 40);
  EXPECT_EQ(Refusal(header), v1::REFUSAL_MALFORMED);

  header = Header();
  header.set_chunk_elements(1u << 30);
  EXPECT_EQ(Refusal(header), v1::REFUSAL_OVERSIZED);

  for (const char* name : {"refused_schema", "refused_unknown_run", "refused_wrong_lineage",
                           "refused_stale_generation", "refused_closed_round", "refused_wrong_base",
                           "refused_malformed", "refused_oversized"}) {
    AwaitCounter(name, 1);
  }
  const uint32_t version = FindRun(status_, run_)->version();
  Refresh(version + 2);
}

TEST_F(RoundsRefusalsTest, DamagedBytesAreNotTaken) {
  ASSERT_NO_FATAL_FAILURE(Begin(kEndless));
  // The round may close between the look and the call; then it is tried in the next.
  v1::Refusal refusal = v1::REFUSAL_UNSPECIFIED;
  for (int time = 0; time < 50 && refusal != v1::REFUSAL_WRONG_CRC; ++time) {
    ASSERT_NO_FATAL_FAILURE(Refresh(0));
    const absl::Status status = Stage(aggregator_, Header(), data_, Crc32c(data_) ^ 1);
    refusal = RefusalOf(status);
    ASSERT_THAT(refusal,
                AnyOf(v1::REFUSAL_WRONG_CRC, v1::REFUSAL_CLOSED_ROUND, v1::REFUSAL_WRONG_BASE))
        << status;
  }
  EXPECT_EQ(refusal, v1::REFUSAL_WRONG_CRC);
  AwaitCounter("refused_wrong_crc", 1);
}

TEST_F(RoundsRefusalsTest, UncommittedContributionIsDropped) {
  ASSERT_NO_FATAL_FAILURE(Begin(20000));
  // Contributions of group 1 may be staged, but no Contributed was said for them.
  int staged = 0;
  for (int time = 0; time < 50 && staged == 0; ++time) {
    ASSERT_NO_FATAL_FAILURE(Refresh(0));
    if (Stage(aggregator_, Header(), data_, Crc32c(data_)).ok()) ++staged;
  }
  EXPECT_EQ(staged, 1);
  const auto done = cluster_.AwaitDone(run_, kLong);
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_GE(FindRun(*done, run_)->test().accuracy(), 0.9);
  cluster_.Kill("coordinator");
  const auto commits = cluster_.Commits(run_);
  ASSERT_TRUE(commits.ok()) << commits.status();
  // And version 0, which is nobody's.
  EXPECT_EQ(commits->size(), 20000u / 200 + 1);
  for (const auto& [round, commit] : *commits) {
    if (round == 0) continue;
    ASSERT_EQ(commit.participants_size(), 1) << round;
    EXPECT_EQ(commit.participants(0).group(), 0u) << round;
  }
}

TEST_F(RoundsRefusalsTest, OversizedMessageEndsCall) {
  ASSERT_NO_FATAL_FAILURE(Begin(kEndless));
  v1::ContributionHeader header = Header();
  header.set_lineage(std::string(kMaxMessageBytes + 1, 'x'));
  const absl::Status status = Stage(aggregator_, header, data_, Crc32c(data_));
  EXPECT_TRUE(absl::IsResourceExhausted(status) || RefusalOf(status) == v1::REFUSAL_OVERSIZED)
      << status;
  Refresh(FindRun(status_, run_)->version() + 2);
}

}  // namespace
}  // namespace cadre::testing
