// Messages of members that do not belong to a run, into the coordinator's state machine.
//
// An input has one message on each line, as text, after the number of the member that sends it: 0
// is a worker, 1 an aggregator. Text is used because mutations of it often stay valid. Texts are
// limited as the service does.
#include <glog/logging.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "base/protocol.h"
#include "coordinator/member_text.h"
#include "tests/coordinator/fake_cluster.h"
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

// Lines that are not valid messages are left out.
class NoErrors : public google::protobuf::io::ErrorCollector {
  void AddError(int, int, const std::string&) override {}
};

}  // namespace

// The run of others reaches its end with its own spec.
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
  }
  CHECK(cluster.RunUntilEnded(run)) << cluster.RunStatus(run).ShortDebugString();
  const v1::RunStatus ended = cluster.RunStatus(run);
  CHECK_EQ(ended.state(), v1::RUN_STATE_DONE) << ended.reason();
  CHECK_EQ(ended.step(), 20u);
}

}  // namespace cadre::fuzz
