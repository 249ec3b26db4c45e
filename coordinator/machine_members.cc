// Streams, Hello and leases. Part of Machine.
//
// A member is identified by its id and a process by its incarnation, a random number that the
// process chooses at its start. A Hello is one of four cases:
//
//   known id or incarnation, same process  a reconnect: the member keeps its lease and its rank
//   aggregator with a known name           the same member, also as a new process: its data is on
//                                          its disk
//   unknown worker id                      refused, since its lease has expired; it joins as a new
//                                          member
//   anything else                          a new member
//
// A reconnect without an id but with a known incarnation means that Welcome was lost.
//
// Messages in both directions may be lost with a stream. Members send unanswered messages again;
// OnWorkerRejoined repeats the messages of the coordinator for the current generation. All handlers
// therefore accept duplicates.
//
// Only ExpireMembers (a Tick) ends a lease. The driver sends Tick after all received messages, so a
// slow coordinator does not take its own delay for the silence of a member.
#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/keys.h"
#include "coordinator/machine.h"
#include "proto/enum_text.h"

namespace cadre {
namespace {

using google::protobuf::util::MessageDifferencer;

// Maximum number of counters of one member.
constexpr int kMaxCounters = 256;

std::string MissingField(const v1::Hello& hello) {
  if (hello.role() != v1::ROLE_WORKER && hello.role() != v1::ROLE_AGGREGATOR) return "role";
  if (hello.name().empty()) return "name";
  if (hello.incarnation().empty()) return "incarnation";
  if (hello.address().empty()) return "address";
  return "";
}

}  // namespace

void Machine::OnStreamClosed(ConnectionId connection) {
  Member* const member = members_.Detach(connection);
  if (member == nullptr) return;
  if (!member->worker()) {
    OnAggregatorLost(*member);
    return;
  }
  if (!member->place.has_value()) return;
  Run* const run = FindRun(member->place->run());
  Slot& slot = run->slots[member->place->group()];
  // Forming the group again costs little; waiting for the lease to expire would cost seconds.
  if (slot.preparing()) {
    Fence(*run, slot,
          absl::StrCat("the stream of worker ", member->id(), " closed during preparation"),
          Ending::kReleased);
  }
}

void Machine::OnMessage(const MessageReceived& received) {
  Member* const member = members_.ByConnection(received.connection);
  if (received.message.has_hello()) {
    if (members_.IsPending(received.connection)) {
      OnHello(received.connection, received.message.hello());
    } else if (member != nullptr) {
      Refuse(received.connection, v1::REFUSAL_OUT_OF_ORDER, "Hello was sent twice on one stream");
    }
    return;
  }
  if (member != nullptr) {
    members_.Renew(*member, now_);
    OnMemberMessage(*member, received.message);
  } else if (members_.IsPending(received.connection)) {
    Refuse(received.connection, v1::REFUSAL_OUT_OF_ORDER, "the first message must be Hello");
  }
}

void Machine::OnMemberMessage(Member& member, const v1::MemberMessage& message) {
  switch (message.body_case()) {
    case v1::MemberMessage::kHeartbeat:
      return OnHeartbeat(member, message.heartbeat());
    case v1::MemberMessage::kGoodbye:
      // The id is copied, because Drop destroys the member that owns it.
      return Drop(std::string(member.id()), absl::StrCat("left: ", message.goodbye().reason()),
                  Ending::kReleased);
    default:
      return member.worker() ? OnWorkerMessage(member, message)
                             : OnAggregatorMessage(member, message);
  }
}

void Machine::OnWorkerMessage(Member& member, const v1::MemberMessage& message) {
  switch (message.body_case()) {
    case v1::MemberMessage::kPrepared:
      return OnPrepared(member, message.prepared());
    case v1::MemberMessage::kProgress:
      return OnProgress(member, message.progress());
    case v1::MemberMessage::kContributed:
      return OnContributed(member, message.contributed());
    case v1::MemberMessage::kAdopted:
      return OnAdopted(member, message.adopted());
    case v1::MemberMessage::kEvaluated:
      return OnEvaluated(member, message.evaluated());
    case v1::MemberMessage::kGroupFailed:
      return OnGroupFailed(member, message.group_failed());
    case v1::MemberMessage::kMeasured:
      return OnMeasured(member, message.measured());
    case v1::MemberMessage::kTraced:
      return OnTraced(member, message.traced());
    default:
      Refuse(member.connection, v1::REFUSAL_MALFORMED, "not a message that workers send");
  }
}

void Machine::OnAggregatorMessage(Member& member, const v1::MemberMessage& message) {
  switch (message.body_case()) {
    case v1::MemberMessage::kRunOpened:
      return OnRunOpened(member, message.run_opened());
    case v1::MemberMessage::kApplied:
      return OnApplied(member, message.applied());
    default:
      Refuse(member.connection, v1::REFUSAL_MALFORMED, "not a message that aggregators send");
  }
}

void Machine::OnHello(ConnectionId connection, const v1::Hello& hello) {
  if (hello.schema_hash() != options_.schema_hash) {
    Refuse(connection, v1::REFUSAL_SCHEMA,
           absl::StrFormat("the member has schema %016x, the coordinator %016x; run the same build "
                           "of Cadre everywhere (coordinator: %s, member: %s)",
                           hello.schema_hash(), options_.schema_hash, options_.version,
                           hello.version()));
    return;
  }
  if (const std::string missing = MissingField(hello); !missing.empty()) {
    Refuse(connection, v1::REFUSAL_MALFORMED, absl::StrCat("Hello lacks the field ", missing));
    return;
  }
  if (hello.role() == v1::ROLE_WORKER) {
    OnWorkerHello(connection, hello);
  } else {
    OnAggregatorHello(connection, hello);
  }
}

void Machine::OnWorkerHello(ConnectionId connection, const v1::Hello& hello) {
  Member* member = hello.member_id().empty()
                       ? members_.ByIncarnation(v1::ROLE_WORKER, hello.incarnation())
                       : members_.Find(hello.member_id());
  const bool known =
      member != nullptr && member->worker() && member->record.incarnation() == hello.incarnation();
  if (known) {
    UpdateMember(*member, hello);
    Welcome(*member, connection);
    OnWorkerRejoined(*member, hello);
    return;
  }
  if (!hello.member_id().empty()) {
    Refuse(connection, v1::REFUSAL_UNKNOWN_MEMBER,
           absl::StrCat("worker ", hello.member_id(),
                        " is not registered: its lease has expired; join without an id"));
    return;
  }
  for (const std::string& id : members_.Predecessors(hello)) {
    Drop(id, "was restarted as a new process", Ending::kFailed);
  }
  Welcome(AddMember(hello), connection);
}

// An aggregator is identified by its name: its data is on its disk, not in its process.
void Machine::OnAggregatorHello(ConnectionId connection, const v1::Hello& hello) {
  Member* member = members_.Aggregator(hello.name());
  bool address_changed = true;
  if (member == nullptr) {
    member = &AddMember(hello);
  } else {
    address_changed = member->record.address() != hello.address();
    OnAggregatorLost(*member);
    UpdateMember(*member, hello);
  }
  Welcome(*member, connection);
  OnAggregatorJoined(*member, hello, address_changed);
}

Member& Machine::AddMember(const v1::Hello& hello) {
  meta_.set_member(meta_.member() + 1);
  meta_changed_ = true;
  v1::MemberRecord record;
  record.set_member_id(absl::StrCat(hello.role() == v1::ROLE_WORKER ? "w" : "a", meta_.member()));
  record.set_role(hello.role());
  record.set_name(hello.name());
  Member& member = members_.Add(record, now_);
  UpdateMember(member, hello);
  return member;
}

void Machine::UpdateMember(Member& member, const v1::Hello& hello) {
  member.cores = hello.cores();
  member.memory_bytes = hello.memory_bytes();
  if (member.record.incarnation() != hello.incarnation()) KeepCounters(member);
  v1::MemberRecord record = member.record;
  record.set_incarnation(hello.incarnation());
  record.set_address(hello.address());
  record.set_host(hello.host());
  record.set_device(hello.device());
  record.set_device_kind(hello.device_kind());
  // A reconnect usually leaves the record unchanged; it is then not written again.
  if (MessageDifferencer::Equals(record, member.record)) return;
  member.record = record;
  Save(member);
}

void Machine::Welcome(Member& member, ConnectionId connection) {
  // A half-open stream of the same process may still exist.
  const ConnectionId before = members_.Attach(member, connection, now_);
  if (before != 0) out_.End(before, absl::AbortedError("the member opened another stream"));
  v1::CoordinatorMessage message;
  v1::Welcome& welcome = *message.mutable_welcome();
  welcome.set_member_id(member.id());
  welcome.set_lease_ms(absl::ToInt64Milliseconds(options_.lease));
  welcome.set_heartbeat_ms(absl::ToInt64Milliseconds(options_.heartbeat));
  out_.SendTo(connection, std::move(message));
}

// Messages may have been lost with the stream, so they are sent again. If the worker and the
// coordinator disagree about the worker's rank, the rank is given up.
void Machine::OnWorkerRejoined(Member& member, const v1::Hello& hello) {
  const bool claims = hello.has_place() && hello.place().generation() != 0;
  const bool agrees = claims && member.Holds(hello.place());
  if (claims && !agrees) {
    CountRefusal(v1::REFUSAL_STALE_GENERATION);
    SendRelease(member.id(), hello.place(), "the generation has ended");
  }
  if (!member.place.has_value()) return;
  Run& run = *FindRun(member.place->run());
  Slot& slot = run.slots[member.place->group()];
  const uint32_t rank = member.place->rank();
  if (slot.preparing()) {
    SendAssignment(run, slot, rank);
  } else if (agrees) {
    SendStart(run, slot, rank);
    if (run.averages()) SendShardAddresses(run, member.id());
    if (rank == 0) ResendPart(run, slot);
    SendTraceSteps(slot, rank);
  } else {
    Fence(run, slot, absl::StrCat("worker ", member.id(), " reconnected without its rank"),
          Ending::kFailed);
  }
}

// Counters are totals since the start of the member's process, so those of the newest heartbeat
// replace earlier ones.
void Machine::OnHeartbeat(Member& member, const v1::Heartbeat& heartbeat) {
  member.counters.clear();
  for (const auto& [name, value] : heartbeat.counters()) {
    if (member.counters.size() >= kMaxCounters) break;
    member.counters[name] = value;
  }
}

void Machine::Refuse(ConnectionId connection, v1::Refusal refusal, absl::string_view reason) {
  Member* const member = members_.ByConnection(connection);
  if (member == nullptr && !members_.IsPending(connection)) return;
  CountRefusal(refusal);
  v1::CoordinatorMessage message;
  message.mutable_refused()->set_refusal(refusal);
  message.mutable_refused()->set_reason(std::string(reason));
  out_.SendTo(connection, std::move(message));
  out_.End(connection, absl::FailedPreconditionError(reason));
  OnStreamClosed(connection);
}

void Machine::CountRefusal(v1::Refusal refusal) {
  Count(absl::StrCat("refused_", EnumText(refusal)));
}

void Machine::Drop(const std::string& member_id, absl::string_view reason, Ending ending) {
  Member* const found = members_.Find(member_id);
  if (found == nullptr) return;
  KeepCounters(*found);
  // This is a copy, because fencing needs the member after its removal.
  const Member member = *found;
  if (member.connected()) {
    out_.End(member.connection, absl::AbortedError(absl::StrCat(member_id, " ", reason)));
  }
  members_.Remove(member_id);
  out_.EraseOne(MemberKey(member_id));
  if (!member.worker()) {
    OnAggregatorLost(member);
  } else if (member.place.has_value()) {
    Run& run = *FindRun(member.place->run());
    Fence(run, run.slots[member.place->group()],
          absl::StrCat("worker ", member_id, " (", member.record.name(), ") ", reason), ending);
  }
}

void Machine::KeepCounters(Member& member) {
  for (const auto& [name, value] : member.counters) {
    if (absl::StartsWith(name, "refused_")) Count(name, value);
  }
  member.counters.clear();
}

void Machine::SendTo(absl::string_view member_id, const v1::CoordinatorMessage& message) {
  const Member* const member = members_.Find(member_id);
  if (member != nullptr && member->connected()) out_.SendTo(member->connection, message);
}

void Machine::SendRelease(absl::string_view member_id, const v1::RankSlot& place,
                          absl::string_view reason) {
  v1::CoordinatorMessage message;
  *message.mutable_release()->mutable_place() = place;
  message.mutable_release()->set_reason(std::string(reason));
  SendTo(member_id, message);
}

}  // namespace cadre
