// Messages of a coordinator, into the state machines of a worker: its assignment, and what its rank
// does in a group.
//
// An input has one CoordinatorMessage on each line, as text, of which mutations often stay valid,
// or the line `reconnect`. The actions of the rank are carried out at once.
#include <glog/logging.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_split.h"
#include "member/assignment.h"
#include "member/rank_protocol.h"
#include "tests/fuzz/targets.h"

namespace cadre::fuzz {
namespace {

class NoErrors : public google::protobuf::io::ErrorCollector {
  void AddError(int, int, const std::string&) override {}
};

class Worker {
 public:
  void Receive(const v1::CoordinatorMessage& message) { CarryOut(machine_.Receive(message)); }
  void Reconnect() { CarryOut(machine_.Connected()); }

 private:
  void CarryOut(const AssignmentMachine::Actions& actions) {
    for (const AssignmentMachine::Action& action : actions) {
      std::visit([this](const auto& one) { Do(one); }, action);
    }
  }

  // No generation returns.
  void Do(const AssignmentMachine::Begin& begin) {
    const v1::RankSlot& place = begin.assignment.place();
    uint32_t& newest = newest_[{begin.assignment.lineage(), place.group()}];
    CHECK_GT(place.generation(), newest);
    newest = place.generation();
    CHECK(!rank_) << "the rank before has not been cancelled";
    assignment_ = begin.assignment;
    rank_.emplace(assignment_);
    begun_ = false;
    v1::Prepared prepared;
    *prepared.mutable_place() = place;
    CarryOut(machine_.Report(prepared));
  }
  void Do(const AssignmentMachine::Cancel& /*cancel*/) { rank_.reset(); }
  void Do(const AssignmentMachine::Send& send) {
    CHECK(machine_.rank_slot().has_value() || send.message.has_group_failed() ||
          send.message.has_restaged())
        << send.message.ShortDebugString();
  }
  void Do(const AssignmentMachine::Deliver& deliver) {
    CHECK(rank_.has_value());
    const v1::CoordinatorMessage& message = deliver.message;
    if (message.has_start() && !std::exchange(begun_, true)) {
      Handle(RankProtocol::Started{message.start(), /*train_samples=*/100});
    } else if (message.has_decision() && std::exchange(awaiting_, false)) {
      Handle(RankProtocol::Decided{message.decision()});
    }
  }

  // Until the rank waits for a decision. A coordinator may order endless evaluations.
  void Handle(RankProtocol::Event event) {
    for (int steps = 0; steps < 100 && rank_; ++steps) {
      std::optional<RankProtocol::Event> next;
      for (const RankProtocol::Action& action : rank_->Handle(event)) {
        CHECK(!next) << "only the last action has an event";
        next = std::visit([this](const auto& one) { return Answer(one); }, action);
        if (!rank_) return;
      }
      if (!next) return;
      event = *std::move(next);
    }
  }

  using Next = std::optional<RankProtocol::Event>;
  Next Answer(const RankProtocol::Train& train) {
    CHECK_GE(train.until, rank_->step());
    return RankProtocol::Trained{};
  }
  static Next Answer(const RankProtocol::AskPresence&) { return RankProtocol::Presence{}; }
  static Next Answer(const RankProtocol::AskNudge&) { return RankProtocol::Nudged{true}; }
  static Next Answer(const RankProtocol::Stage& stage) {
    CHECK_EQ(stage.round, stage.base_version + 1);
    if (stage.background) return RankProtocol::Unfinished{};
    return RankProtocol::Staged{};
  }
  static Next Answer(const RankProtocol::AwaitStaged&) { return RankProtocol::Staged{}; }
  Next Answer(const RankProtocol::AwaitDecision& await) {
    if (!await.wait) return RankProtocol::Unfinished{};
    awaiting_ = true;
    return std::nullopt;
  }
  Next Answer(const RankProtocol::Initialize&) {
    return RankProtocol::Pulled{.digest = rank_->start().digest()};
  }
  static Next Answer(const RankProtocol::Merge& merge) {
    CHECK_GT(merge.step, 0U);
    return std::nullopt;
  }
  static Next Answer(const RankProtocol::Pull& pull) {
    if (pull.background) return RankProtocol::Unfinished{};
    return RankProtocol::Pulled{.digest = pull.digest};
  }
  static Next Answer(const RankProtocol::Begin&) { return RankProtocol::Kept{}; }
  static Next Answer(const RankProtocol::Keep&) { return RankProtocol::Kept{}; }
  static Next Answer(const RankProtocol::Evaluate& evaluate) {
    CHECK_LT(evaluate.begin, evaluate.end);
    return RankProtocol::Evaluated{};
  }
  Next Answer(const RankProtocol::Send& send) {
    CarryOut(machine_.Report(send.report));
    return std::nullopt;
  }
  static Next Answer(const RankProtocol::Leave&) {
    LOG(FATAL) << "no rank has ended its loop";
    return std::nullopt;
  }
  static Next Answer(const RankProtocol::Fail& fail) {
    LOG(FATAL) << "the digest is that of the decision: " << fail.status;
    return std::nullopt;
  }

  AssignmentMachine machine_;
  std::map<std::pair<std::string, uint32_t>, uint32_t> newest_;
  v1::Assignment assignment_;
  std::optional<RankProtocol> rank_;
  bool begun_ = false;
  bool awaiting_ = false;
};

}  // namespace

void Assignment(std::span<const uint8_t> input) {
  FLAGS_minloglevel = google::FATAL;
  Worker worker;
  google::protobuf::TextFormat::Parser parser;
  NoErrors no_errors;
  parser.RecordErrorsTo(&no_errors);
  const std::string text(input.begin(), input.end());
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    v1::CoordinatorMessage message;
    if (line == "reconnect") {
      worker.Reconnect();
    } else if (parser.ParseFromString(std::string(line), &message)) {
      worker.Receive(message);
    }
  }
}

}  // namespace cadre::fuzz
