#include "coordinator/service/member_text.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/peer_text.h"
#include "base/status.h"
#include "proto/long_text.h"

namespace cadre {
namespace {

// Limit of texts that have no other one, such as names of parameters.
constexpr size_t kMaxText = 4 << 10;

absl::Status CheckHello(const v1::Hello& hello) {
  // Hello without a name is refused as incomplete (coordinator/cluster/cluster.cc).
  if (!hello.name().empty()) CADRE_RETURN_IF_ERROR(CheckName("hello.name", hello.name()));
  for (const auto& [field, line] :
       {std::pair{"hello.incarnation", &hello.incarnation()},
        {"hello.address", &hello.address()},
        {"hello.host", &hello.host()},
        {"hello.device", &hello.device()},
        {"hello.version", &hello.version()},
        {"hello.member_id", &hello.member_id()},
        {"hello.reservation.run", &hello.reservation().run()},
        {"hello.reservation.program", &hello.reservation().program()}}) {
    CADRE_RETURN_IF_ERROR(CheckPeerLine(field, *line));
  }
  return absl::OkStatus();
}

// The field that explains a failure; null for messages without one.
std::string* ReasonOf(v1::MemberMessage& message) {
  switch (message.body_case()) {
    case v1::MemberMessage::kGroupFailed:
      return message.mutable_group_failed()->mutable_reason();
    case v1::MemberMessage::kGoodbye:
      return message.mutable_goodbye()->mutable_reason();
    case v1::MemberMessage::kRunOpened:
      return message.mutable_run_opened()->mutable_error();
    case v1::MemberMessage::kApplied:
      return message.mutable_applied()->mutable_error();
    case v1::MemberMessage::kRestaged:
      return message.mutable_restaged()->mutable_error();
    case v1::MemberMessage::kCheckpointed:
      return message.mutable_checkpointed()->mutable_error();
    default:
      return nullptr;
  }
}

}  // namespace

absl::Status LimitText(v1::MemberMessage& message) {
  if (message.has_hello()) CADRE_RETURN_IF_ERROR(CheckHello(message.hello()));
  if (std::string* const reason = ReasonOf(message)) *reason = ShortReason(*reason);
  if (message.has_prepared()) {
    std::string& left_out = *message.mutable_prepared()->mutable_data_left_out();
    left_out = ShortReason(left_out);
  }
  if (message.has_checkpointed()) {
    std::string& warning = *message.mutable_checkpointed()->mutable_warning();
    warning = ShortReason(warning);
  }
  if (message.has_heartbeat()) {
    for (v1::Fallback& fallback : *message.mutable_heartbeat()->mutable_fallbacks()) {
      fallback.set_reason(ShortReason(fallback.reason()));
    }
    for (v1::DelayedOrder& delayed : *message.mutable_heartbeat()->mutable_delayed_orders()) {
      CADRE_RETURN_IF_ERROR(CheckPeerLine("heartbeat.delayed_orders.run", delayed.run()));
      CADRE_RETURN_IF_ERROR(CheckPeerLine("heartbeat.delayed_orders.order", delayed.order()));
      delayed.set_reason(ShortReason(delayed.reason()));
    }
    for (v1::RunWarning& warning : *message.mutable_heartbeat()->mutable_warnings()) {
      CADRE_RETURN_IF_ERROR(CheckPeerLine("heartbeat.warnings.run", warning.run()));
      warning.set_text(ShortReason(warning.text()));
    }
  }
  if (const auto text = FindLongText(message, kMaxText)) {
    return absl::InvalidArgumentError(absl::StrCat(text->field, " has ", text->bytes,
                                                   " bytes; at most ", kMaxText, " are allowed"));
  }
  return absl::OkStatus();
}

}  // namespace cadre
