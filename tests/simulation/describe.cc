#include "tests/simulation/describe.h"

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "proto/enum_text.h"

namespace cadre::simulation {
namespace {

std::string Participants(const v1::Apply& apply) {
  std::string text;
  for (const v1::Participant& in : apply.participants()) {
    absl::StrAppend(&text, " ", in.group(), "#", in.generation(), "x", in.samples());
  }
  return text;
}

}  // namespace

std::string Describe(const v1::RankSlot& place) {
  return absl::StrCat(place.run(), "/", place.group(), "#", place.generation(), ":", place.rank());
}

std::string Describe(const v1::MemberMessage& message) {
  switch (message.body_case()) {
    case v1::MemberMessage::kHello:
      return absl::StrCat(
          "Hello ", message.hello().name(), " ", message.hello().incarnation(), " ",
          message.hello().member_id(),
          message.hello().has_place() ? absl::StrCat(" ", Describe(message.hello().place())) : "");
    case v1::MemberMessage::kHeartbeat:
      return "Heartbeat";
    case v1::MemberMessage::kPrepared:
      return absl::StrCat("Prepared ", Describe(message.prepared().place()));
    case v1::MemberMessage::kProgress:
      return absl::StrCat("Progress ", Describe(message.progress().place()), " step ",
                          message.progress().step());
    case v1::MemberMessage::kContributed:
      return absl::StrCat("Contributed ", Describe(message.contributed().place()), " round ",
                          message.contributed().round(), " step ", message.contributed().step(),
                          " samples ", message.contributed().samples());
    case v1::MemberMessage::kAdopted:
      return absl::StrCat("Adopted ", Describe(message.adopted().place()), " version ",
                          message.adopted().version(), " ", DigestHex(message.adopted().digest()));
    case v1::MemberMessage::kEvaluated:
      return absl::StrCat("Evaluated ", Describe(message.evaluated().place()), " version ",
                          message.evaluated().version(), " [", message.evaluated().begin(), ", ",
                          message.evaluated().end(), ")");
    case v1::MemberMessage::kGroupFailed:
      return absl::StrCat("GroupFailed ", Describe(message.group_failed().place()), ": ",
                          message.group_failed().reason());
    case v1::MemberMessage::kRunOpened:
      return absl::StrCat("RunOpened ", message.run_opened().run(), " shard ",
                          message.run_opened().shard(), " version ",
                          message.run_opened().version());
    case v1::MemberMessage::kApplied:
      return absl::StrCat("Applied ", message.applied().run(), " shard ", message.applied().shard(),
                          " round ", message.applied().round(), " ",
                          message.applied().error().empty() ? DigestHex(message.applied().digest())
                                                            : message.applied().error());
    case v1::MemberMessage::kGoodbye:
      return "Goodbye";
    default:
      return "nothing";
  }
}

std::string Describe(const v1::CoordinatorMessage& message) {
  switch (message.body_case()) {
    case v1::CoordinatorMessage::kWelcome:
      return absl::StrCat("Welcome ", message.welcome().member_id());
    case v1::CoordinatorMessage::kRefused:
      return absl::StrCat("Refused ", EnumText(message.refused().refusal()), ": ",
                          message.refused().reason());
    case v1::CoordinatorMessage::kAssignment:
      return absl::StrCat("Assignment ", Describe(message.assignment().place()), " of ",
                          message.assignment().peers_size(), " version ",
                          message.assignment().version(), " step ", message.assignment().step());
    case v1::CoordinatorMessage::kStart:
      return absl::StrCat("Start ", Describe(message.start().place()), " until ",
                          message.start().next_step(), " evaluate [",
                          message.start().evaluate_begin(), ", ", message.start().evaluate_end(),
                          ")");
    case v1::CoordinatorMessage::kRelease:
      return absl::StrCat("Release ", Describe(message.release().place()), ": ",
                          message.release().reason());
    case v1::CoordinatorMessage::kDecision:
      return absl::StrCat(
          "Decision ", Describe(message.decision().place()), " round ", message.decision().round(),
          " version ", message.decision().version(), " step ", message.decision().step(),
          message.decision().included() ? "" : " without it", " until ",
          message.decision().next_step(), " evaluate [", message.decision().evaluate_begin(), ", ",
          message.decision().evaluate_end(), ")");
    case v1::CoordinatorMessage::kShardAddresses:
      return absl::StrCat("ShardAddresses ", message.shard_addresses().run());
    case v1::CoordinatorMessage::kOpenRun:
      return absl::StrCat("OpenRun ", message.open_run().run(), " shard ",
                          message.open_run().shard(), " of ", message.open_run().shards());
    case v1::CoordinatorMessage::kApply:
      return absl::StrCat("Apply ", message.apply().run(), " shard ", message.apply().shard(),
                          " round ", message.apply().round(), ":", Participants(message.apply()));
    case v1::CoordinatorMessage::kCloseRun:
      return absl::StrCat("CloseRun ", message.close_run().run());
    default:
      return "nothing";
  }
}

}  // namespace cadre::simulation
