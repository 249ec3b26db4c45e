// Messages of members that do not belong to a run, into the coordinator's state machine.
//
// An input has one message on each line, as text, after the number of the member that sends it: 0
// is a worker, 1 an aggregator. Text is used because mutations of it often stay valid. Texts are
// limited as the service does.
//
// Checks: the run of the other members reaches its end with its own spec, whose record never
// changes, and each message leads to a bounded number of messages to each member.
#include <glog/logging.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "base/protocol.h"
#include "coordinator/service/member_text.h"
#include "coordinator/store/keys.h"
#include "tests/coordinator/machine/fake_cluster.h"
#include "tests/fuzz/targets.h"

namespace cadre::fuzz {
namespace {

using testing::FakeCluster;

v1::MemberMessage Hello(v1::Role role, const std::string& name) {
  v1::MemberMessage message;
  v1::Hello& hello = *message.mutable_hello();
  hello.set_protocol(kProtocol);
  hello.set_role(role);
  hello.set_name(name);
  hello.set_incarnation(name);
  hello.set_address(name + ":1");
  return message;
}

// Far below the size of a stream's queue (coordinator/service/streams.cc), so that no message of a
// stranger fills the queue of a member.
constexpr size_t kMaxMessages = 16;

// The number of messages to each member so far.
std::map<std::string, size_t> CountMessages(FakeCluster& cluster,
                                            std::span<const ConnectionId> strangers) {
  std::map<std::string, size_t> counts;
  for (const testing::FakeWorker& worker : cluster.workers()) {
    counts[worker.name] = worker.received.size();
  }
  for (const testing::FakeAggregator& aggregator : cluster.aggregators()) {
    counts[aggregator.name] = aggregator.received.size();
  }
  for (const ConnectionId stranger : strangers) {
    counts[std::to_string(stranger)] = cluster.SentTo(stranger).size();
  }
  return counts;
}

// Lines that are not valid messages are left out.
class NoErrors : public google::protobuf::io::ErrorCollector {
  void AddError(int, int, const std::string&) override {}
};

}  // namespace

void Member(std::span<const uint8_t> input) {
  FLAGS_minloglevel = google::FATAL;
  FakeCluster cluster;
  cluster.AddWorkers(4);
  cluster.AddAggregator("agg-0");
  const v1::RunSpec spec = testing::MakeSpec(2, 2, 5, 20);
  const std::string run = cluster.Submit(spec);
  CHECK(!run.empty());
  const v1::MemberMessage hellos[] = {Hello(v1::ROLE_WORKER, "stranger"),
                                      Hello(v1::ROLE_AGGREGATOR, "other")};
  ConnectionId strangers[2];
  const auto join = [&](int i) {
    strangers[i] = cluster.Open();
    cluster.Do(MessageReceived{strangers[i], hellos[i]});
    CHECK(cluster.IsOpen(strangers[i]));
  };
  for (const int i : {0, 1}) join(i);
  const std::string stored = cluster.store().at(SpecKey(run));
  std::map<std::string, size_t> counts = CountMessages(cluster, strangers);
  google::protobuf::TextFormat::Parser parser;
  NoErrors no_errors;
  parser.RecordErrorsTo(&no_errors);
  const std::string text(input.begin(), input.end());
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (line.size() < 2 || (line[0] != '0' && line[0] != '1')) continue;
    v1::MemberMessage message;
    if (!parser.ParseFromString(std::string(line.substr(1)), &message)) continue;
    const int i = line[0] - '0';
    // A refusal has ended the stream.
    if (!cluster.IsOpen(strangers[i])) join(i);
    const ConnectionId from = strangers[i];
    if (LimitText(message).ok()) {
      cluster.Do(MessageReceived{from, message});
    } else {
      cluster.Do(MessageRefused{from, v1::REFUSAL_MALFORMED, "text"});
    }
    // Training goes on between the messages.
    cluster.Run(absl::Milliseconds(300));
    std::map<std::string, size_t> before = std::exchange(counts, CountMessages(cluster, strangers));
    for (const auto& [member, count] : counts) CHECK_LE(count - before[member], kMaxMessages);
    CHECK_EQ(cluster.store().at(SpecKey(run)), stored);
  }
  CHECK(cluster.RunUntilEnded(run)) << cluster.RunStatus(run).ShortDebugString();
  const v1::RunStatus ended = cluster.RunStatus(run);
  CHECK_EQ(ended.state(), v1::RUN_STATE_DONE) << ended.reason();
  CHECK_EQ(ended.step(), 20u);
  CHECK_EQ(cluster.store().at(SpecKey(run)), stored);
}

}  // namespace cadre::fuzz
