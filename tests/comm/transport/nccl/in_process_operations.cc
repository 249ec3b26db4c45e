// Operations: enqueueing, and matching with peers.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "glog/logging.h"
#include "tests/comm/transport/nccl/in_process_nccl.h"

namespace cadre::in_process {
namespace {

// An operation that waits longer than this logs its peers, and continues to wait.
constexpr absl::Duration kPatience = absl::Seconds(20);

template <typename T>
constexpr TypeInfo InfoOf(ncclDataType_t type, const char* name) {
  return {type, name, sizeof(T)};
}
constexpr TypeInfo kTypes[] = {
    InfoOf<uint8_t>(ncclUint8, "uint8"),    InfoOf<uint16_t>(ncclBfloat16, "bf16"),
    InfoOf<uint64_t>(ncclUint64, "uint64"), InfoOf<float>(ncclFloat32, "fp32"),
    InfoOf<double>(ncclFloat64, "fp64"),
};

bool HasPeer(Verb verb) {
  return verb == Verb::kSend || verb == Verb::kReceive || verb == Verb::kReduce ||
         verb == Verb::kBroadcast;
}

// Whether operations of two ranks belong to the same collective.
bool Agree(const Operation& a, const Operation& b) {
  return a.verb == b.verb && a.count == b.count && a.type == b.type &&
         (!HasPeer(a.verb) || a.peer == b.peer);
}

bool IsCollective(Verb verb) { return verb != Verb::kSend && verb != Verb::kReceive; }

// The ranks of `size` that are not in `present`.
std::vector<int> Absent(const std::set<int>& present, int size) {
  std::vector<int> absent;
  for (int rank = 0; rank < size; ++rank) {
    if (present.count(rank) == 0) absent.push_back(rank);
  }
  return absent;
}

}  // namespace

TypeInfo TypeOf(ncclDataType_t type) {
  for (const TypeInfo& info : kTypes) {
    if (info.type == type) return info;
  }
  return {.type = type, .name = "elements of an unsupported type"};
}

size_t Reads(const Operation& o, int rank, int ranks) {
  switch (o.verb) {
    case Verb::kReceive:
      return 0;
    case Verb::kReduceScatter:
      return o.count * ranks;
    case Verb::kBroadcast:
      return o.peer == rank ? o.count : 0;
    default:
      return o.count;
  }
}

size_t Writes(const Operation& o, int rank, int ranks) {
  switch (o.verb) {
    case Verb::kSend:
      return 0;
    case Verb::kAllGather:
      return o.count * ranks;
    case Verb::kReduce:
      return o.peer == rank ? o.count : 0;
    default:
      return o.count;
  }
}

std::string Describe(const Operation& o, int rank) {
  const std::string what = absl::StrCat(o.count, " ", TypeOf(o.type).name);
  switch (o.verb) {
    case Verb::kSend:
      return absl::StrCat("rank ", rank, " sends ", what, " to ", o.peer);
    case Verb::kReceive:
      return absl::StrCat("rank ", rank, " receives ", what, " from ", o.peer);
    case Verb::kAllReduce:
      return absl::StrCat("rank ", rank, " all-reduces ", what);
    case Verb::kReduce:
      return absl::StrCat("rank ", rank, " reduces ", what, " to ", o.peer);
    case Verb::kReduceScatter:
      return absl::StrCat("rank ", rank, " reduce-scatters chunks of ", what);
    case Verb::kAllGather:
      return absl::StrCat("rank ", rank, " all-gathers chunks of ", what);
    case Verb::kBroadcast:
      return absl::StrCat("rank ", rank, " broadcasts ", what, " from ", o.peer);
  }
  return "";
}

// --- enqueueing ---------------------------------------------------------------------------------

ncclResult_t InProcessNccl::GroupStart() {
  ++group().depth;
  return ncclSuccess;
}

ncclResult_t InProcessNccl::GroupEnd() {
  const ncclResult_t result = calls_.Enter("group_end");
  if (group().depth == 0) return ncclInvalidUsage;
  if (--group().depth > 0) return result;
  std::vector<Pending> pending = std::exchange(group().pending, {});
  return result != ncclSuccess ? result : SubmitAll(std::move(pending));
}

ncclResult_t InProcessNccl::CheckCall(const Operation& operation, const Communicator& member,
                                      cudaStream_t stream) {
  if (TypeOf(operation.type).bytes == 0 || operation.op != ncclSum) return ncclInvalidArgument;
  if (HasPeer(operation.verb) && (operation.peer < 0 || operation.peer >= member.clique->size)) {
    return ncclInvalidArgument;
  }
  return CheckBuffers(operation, member, stream);
}

ncclResult_t InProcessNccl::Add(const Operation& operation, ncclComm_t comm, cudaStream_t stream) {
  std::vector<Pending> pending;
  {
    absl::MutexLock lock(&mutex_);
    Member member = Find(comm);
    if (member == nullptr) return ncclInvalidArgument;
    if (const ncclResult_t result = Ready(*member); result != ncclSuccess) return result;
    const ncclResult_t result = CheckCall(operation, *member, stream);
    if (result != ncclSuccess) return result;
    Group& open = group();
    open.pending.push_back({std::move(member), stream, operation});
    if (open.depth > 0) return ncclSuccess;
    pending = std::exchange(open.pending, {});
  }
  return SubmitAll(std::move(pending));
}

ncclResult_t InProcessNccl::SubmitAll(std::vector<Pending> pending) {
  ncclResult_t result = ncclSuccess;
  while (!pending.empty()) {
    const Member member = pending.front().member;
    const cudaStream_t stream = pending.front().stream;
    Operations operations;
    std::vector<Pending> others;
    for (Pending& one : pending) {
      if (one.member != member) {
        others.push_back(std::move(one));
        continue;
      }
      if (one.stream != stream) {
        absl::MutexLock lock(&mutex_);
        Disagree(*member->clique, "a group gives operations of one communicator to two streams");
      }
      operations.push_back(one.operation);
    }
    pending = std::move(others);
    const ncclResult_t submitted = Submit(member, std::move(operations), stream);
    if (submitted != ncclSuccess) return submitted;
    absl::MutexLock lock(&mutex_);
    if (member->blocking || polls_ == 0) continue;
    member->polls = polls_;
    result = ncclInProgress;
  }
  return result;
}

ncclResult_t InProcessNccl::Send(const void* from, size_t count, ncclDataType_t type, int peer,
                                 ncclComm_t comm, cudaStream_t stream) {
  return Add({.verb = Verb::kSend, .from = from, .count = count, .type = type, .peer = peer}, comm,
             stream);
}

ncclResult_t InProcessNccl::Receive(void* to, size_t count, ncclDataType_t type, int peer,
                                    ncclComm_t comm, cudaStream_t stream) {
  return Add({.verb = Verb::kReceive, .to = to, .count = count, .type = type, .peer = peer}, comm,
             stream);
}

ncclResult_t InProcessNccl::AllReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                                      ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return Add({Verb::kAllReduce, from, to, count, type, op}, comm, stream);
}

ncclResult_t InProcessNccl::Reduce(const void* from, void* to, size_t count, ncclDataType_t type,
                                   ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return Add({Verb::kReduce, from, to, count, type, op, root}, comm, stream);
}

ncclResult_t InProcessNccl::ReduceScatter(const void* from, void* to, size_t count,
                                          ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                          cudaStream_t stream) {
  return Add({Verb::kReduceScatter, from, to, count, type, op}, comm, stream);
}

ncclResult_t InProcessNccl::AllGather(const void* from, void* to, size_t count, ncclDataType_t type,
                                      ncclComm_t comm, cudaStream_t stream) {
  return Add({Verb::kAllGather, from, to, count, type}, comm, stream);
}

ncclResult_t InProcessNccl::Broadcast(const void* from, void* to, size_t count, ncclDataType_t type,
                                      int root, ncclComm_t comm, cudaStream_t stream) {
  return Add({Verb::kBroadcast, from, to, count, type, ncclSum, root}, comm, stream);
}

// --- matching with peers ------------------------------------------------------------------------

bool InProcessNccl::Await(const Communicator& member, const Operation& operation,
                          const std::function<std::vector<int>()>& absent) {
  const absl::Time deadline = absl::Now() + options_.limit;
  std::vector<int> missing;
  ++waiting_;
  while (!(missing = absent()).empty() && !Gone(member)) {
    if (!changed_.WaitWithTimeout(&mutex_, std::min(kPatience, deadline - absl::Now()))) continue;
    const std::string what = absl::StrCat(Describe(operation, member.rank), " and waits for ranks ",
                                          absl::StrJoin(missing, ", "));
    if (absl::Now() < deadline) {
      LOG(WARNING) << member.clique->name << ": " << what;
    } else if (!absent().empty()) {
      BreakClique(*member.clique, ncclSystemError,
                  absl::StrCat(what, " after ", absl::FormatDuration(options_.limit)));
    }
  }
  --waiting_;
  return missing.empty();
}

void InProcessNccl::Fail(const Member& member, ncclResult_t error, const std::string& what) {
  absl::MutexLock lock(&mutex_);
  BreakClique(*member->clique, error, what);
}

void InProcessNccl::Disagree(Clique& clique, const std::string& what) {
  BreakClique(clique, ncclInvalidUsage, what);
  OnMistake(absl::StrCat(clique.name, ": ", what));
}

ncclResult_t InProcessNccl::ErrorOf(const Communicator& member) const {
  absl::MutexLock lock(&mutex_);
  return member.error;
}

bool InProcessNccl::Check(const Member& member, const Operation& operation,
                          const absl::Status& status) {
  if (status.ok()) return true;
  Fail(member, ncclUnhandledCudaError,
       absl::StrCat(Describe(operation, member->rank), ": ", status.message()));
  return false;
}

std::shared_ptr<Meeting> InProcessNccl::Arrive(Communicator& member, const Operation& operation,
                                               Offer offer) {
  Clique& clique = *member.clique;
  auto& meeting = clique.meetings[member.next_meeting++];
  if (meeting == nullptr) {
    meeting = std::make_shared<Meeting>();
    meeting->first = operation;
    meeting->first_rank = member.rank;
    meeting->offers.resize(clique.size);
    meeting->read.resize(clique.size);
  }
  if (!Agree(meeting->first, operation)) {
    Disagree(clique, absl::StrCat(Describe(operation, member.rank), ", but ",
                                  Describe(meeting->first, meeting->first_rank)));
  }
  meeting->offers[member.rank] = std::move(offer);
  meeting->arrived.insert(member.rank);
  return meeting;
}

// The group's messages are sent first, so that its operations make progress together.
bool InProcessNccl::Post(const Member& member, const Operations& operations, cudaStream_t stream,
                         Sent& sent, Meetings& meetings) {
  Communicator& self = *member;
  std::vector<Offer> offers;
  for (const Operation& operation : operations) {
    absl::StatusOr<Offer> made = MakeOffer(operation, self.rank, self.clique->size, stream);
    if (!Check(member, operation, made.status())) return false;
    offers.push_back(*std::move(made));
  }
  sent.resize(operations.size());
  meetings.resize(operations.size());
  absl::MutexLock lock(&mutex_);
  if (Gone(self)) return false;
  for (size_t i = 0; i < operations.size(); ++i) {
    const Operation& operation = operations[i];
    if (operation.verb == Verb::kSend) {
      sent[i] = std::make_shared<Message>(Message{operation, std::move(offers[i])});
      self.clique->messages[{self.rank, operation.peer}].push_back(sent[i]);
    } else if (IsCollective(operation.verb)) {
      meetings[i] = Arrive(self, operation, std::move(offers[i]));
    }
  }
  changed_.SignalAll();
  return true;
}

bool InProcessNccl::TakeMessage(const Member& member, const Operation& operation,
                                cudaStream_t stream) {
  std::shared_ptr<Message> message;
  {
    absl::MutexLock lock(&mutex_);
    auto& messages = member->clique->messages[{operation.peer, member->rank}];
    const auto sender = [&] {
      return messages.empty() ? std::vector{operation.peer} : std::vector<int>();
    };
    if (!Await(*member, operation, sender)) return false;
    message = messages.front();
    messages.pop_front();
    if (message->sent.count != operation.count || message->sent.type != operation.type) {
      Disagree(*member->clique, absl::StrCat(Describe(operation, member->rank), ", but ",
                                             Describe(message->sent, operation.peer)));
      return false;
    }
  }
  absl::Status status = Follow(message->offer.ready.get(), stream);
  if (status.ok()) {
    status = Copy(message->offer.data, operation.to, operation.count * TypeOf(operation.type).bytes,
                  stream);
  }
  absl::StatusOr<MarkPtr> read = status.ok() ? MarkNow(stream) : status;
  if (!Check(member, operation, read.status())) return false;
  absl::MutexLock lock(&mutex_);
  message->read = *std::move(read);
  message->taken = true;
  changed_.SignalAll();
  return true;
}

absl::Status InProcessNccl::Combine(const Operation& o, int rank, const std::vector<Offer>& offers,
                                    cudaStream_t stream) {
  std::vector<const char*> inputs;
  for (const Offer& offer : offers) {
    CADRE_RETURN_IF_ERROR(Follow(offer.ready.get(), stream));
    inputs.push_back(offer.data);
  }
  const size_t bytes = o.count * TypeOf(o.type).bytes;
  switch (o.verb) {
    case Verb::kAllReduce:
      return Sum(o.type, inputs, 0, o.count, o.to, stream);
    case Verb::kReduce:
      return o.peer == rank ? Sum(o.type, inputs, 0, o.count, o.to, stream) : absl::OkStatus();
    case Verb::kReduceScatter:
      return Sum(o.type, inputs, o.count * rank, o.count, o.to, stream);
    case Verb::kAllGather:
      for (size_t i = 0; i < inputs.size(); ++i) {
        CADRE_RETURN_IF_ERROR(Copy(inputs[i], static_cast<char*>(o.to) + i * bytes, bytes, stream));
      }
      return absl::OkStatus();
    case Verb::kBroadcast:
      return Copy(inputs[o.peer], o.to, bytes, stream);
    default:
      return absl::InternalError("it is not a collective");
  }
}

bool InProcessNccl::Meet(const Member& member, const Operation& operation, Meeting& meeting,
                         cudaStream_t stream) {
  const int ranks = member->clique->size;
  {
    absl::MutexLock lock(&mutex_);
    const bool came = Await(*member, operation, [&] { return Absent(meeting.arrived, ranks); });
    if (!came || !member->clique->failure.empty()) return false;
  }
  // The offers do not change any more.
  const absl::Status status = Combine(operation, member->rank, meeting.offers, stream);
  absl::StatusOr<MarkPtr> read = status.ok() ? MarkNow(stream) : status;
  if (!Check(member, operation, read.status())) return false;
  absl::MutexLock lock(&mutex_);
  meeting.read[member->rank] = *std::move(read);
  meeting.left.insert(member->rank);
  changed_.SignalAll();
  if (std::ssize(meeting.left) < ranks) return true;
  std::erase_if(member->clique->meetings,
                [&](const auto& numbered) { return numbered.second.get() == &meeting; });
  return true;
}

bool InProcessNccl::AwaitReaders(const Member& member, const Operation& operation, Message* message,
                                 Meeting* meeting, cudaStream_t stream) {
  const int ranks = member->clique->size;
  std::vector<MarkPtr> marks;
  {
    absl::MutexLock lock(&mutex_);
    const auto readers = [&] {
      if (meeting != nullptr) return Absent(meeting->left, ranks);
      return message->taken ? std::vector<int>() : std::vector{operation.peer};
    };
    if (!Await(*member, operation, readers)) return false;
    marks = meeting != nullptr ? meeting->read : std::vector{message->read};
  }
  for (const MarkPtr& mark : marks) {
    if (!Check(member, operation, Follow(mark.get(), stream))) return false;
  }
  return true;
}

bool InProcessNccl::Perform(const Member& member, const Operations& operations,
                            cudaStream_t stream) {
  Sent sent;
  Meetings meetings;
  if (!Post(member, operations, stream, sent, meetings)) return false;
  for (size_t i = 0; i < operations.size(); ++i) {
    const Operation& operation = operations[i];
    if (operation.verb == Verb::kReceive && !TakeMessage(member, operation, stream)) return false;
    if (meetings[i] != nullptr && !Meet(member, operation, *meetings[i], stream)) return false;
  }
  for (size_t i = 0; i < operations.size(); ++i) {
    Meeting* const meeting = offers_are_copies() ? nullptr : meetings[i].get();
    if (sent[i] == nullptr && meeting == nullptr) continue;
    if (!AwaitReaders(member, operations[i], sent[i].get(), meeting, stream)) return false;
  }
  return true;
}

}  // namespace cadre::in_process
