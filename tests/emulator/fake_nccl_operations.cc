// Operations of the fake NCCL: enqueueing, and matching with peers.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "glog/logging.h"
#include "gtest/gtest.h"
#include "tests/emulator/emulated_cuda.h"
#include "tests/emulator/fake_nccl_network.h"

namespace cadre::emulated {
namespace {

// An operation that waits longer than this logs its peers, and continues to wait, as NCCL's do.
constexpr absl::Duration kPatience = absl::Seconds(20);

// Numbers of elements that rank `rank` reads and writes in an operation of `ranks` ranks.
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

bool IsPair(Verb verb) { return verb == Verb::kSend || verb == Verb::kReceive; }
bool Reduces(Verb verb) {
  return verb == Verb::kAllReduce || verb == Verb::kReduce || verb == Verb::kReduceScatter;
}
bool HasPeer(Verb verb) {
  return IsPair(verb) || verb == Verb::kReduce || verb == Verb::kBroadcast;
}

// Whether operations of two ranks belong to the same collective.
bool Agree(const Operation& a, const Operation& b) {
  return a.verb == b.verb && a.count == b.count && a.type == b.type &&
         (!Reduces(a.verb) || a.op == b.op) && (!HasPeer(a.verb) || a.peer == b.peer);
}

Bytes Read(const Operation& o, int rank, int ranks) {
  const auto* begin = static_cast<const char*>(o.from);
  const size_t bytes = Reads(o, rank, ranks) * SizeOfNccl(o.type);
  return bytes == 0 ? Bytes() : Bytes(begin, begin + bytes);
}

void Write(const Operation& o, int rank, const std::vector<Bytes>& inputs) {
  const size_t bytes = o.count * SizeOfNccl(o.type);
  auto* to = static_cast<char*>(o.to);
  switch (o.verb) {
    case Verb::kAllReduce:
      return ReduceNccl(inputs, 0, o.count, o.type, o.op, to);
    case Verb::kReduce:
      if (o.peer == rank) ReduceNccl(inputs, 0, o.count, o.type, o.op, to);
      return;
    case Verb::kReduceScatter:
      return ReduceNccl(inputs, o.count * rank, o.count, o.type, o.op, to);
    case Verb::kAllGather:
      for (size_t i = 0; i < inputs.size() && bytes > 0; ++i) {
        std::memcpy(to + i * bytes, inputs[i].data(), bytes);
      }
      return;
    case Verb::kBroadcast:
      if (bytes > 0) std::memcpy(to, inputs[o.peer].data(), bytes);
      return;
    default:
      return;
  }
}

}  // namespace

std::string Describe(const Operation& o, int rank) {
  const std::string what = absl::StrCat(o.count, " ", NameOfNccl(o.type));
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

ncclResult_t Network::GroupStart() {
  absl::MutexLock lock(&mutex_);
  if (const ncclResult_t result = Enter("group_start"); result != ncclSuccess) return result;
  ++group().depth;
  return ncclSuccess;
}

ncclResult_t Network::GroupEnd() {
  std::vector<Pending> pending;
  {
    absl::MutexLock lock(&mutex_);
    const ncclResult_t result = Enter("group_end");
    if (group().depth == 0) return ncclInvalidUsage;
    if (--group().depth > 0) return result;
    pending = std::exchange(group().pending, {});
    if (result != ncclSuccess) return result;
  }
  return SubmitAll(std::move(pending));
}

ncclResult_t Network::Check(const Operation& operation, const Communicator& member,
                            cudaStream_t stream) {
  const int ranks = member.clique->size;
  const size_t width = SizeOfNccl(operation.type);
  if (width == 0 || (Reduces(operation.verb) && !CanReduce(operation.type, operation.op))) {
    return ncclInvalidArgument;
  }
  if (HasPeer(operation.verb) && (operation.peer < 0 || operation.peer >= ranks)) {
    return ncclInvalidArgument;
  }
  if (!EmulatedCuda::IsOf(stream, member.devices)) {
    ADD_FAILURE() << member.clique->name << ": " << Describe(operation, member.rank)
                  << ", on a stream of another device than the one that was the thread's when the "
                     "communicator was made";
    return ncclUnhandledCudaError;
  }
  const auto fits = [stream, width](const void* memory, size_t elements) {
    return elements == 0 || EmulatedCuda::OnDevice(stream, memory, elements * width);
  };
  if (!fits(operation.from, Reads(operation, member.rank, ranks)) ||
      !fits(operation.to, Writes(operation, member.rank, ranks))) {
    ADD_FAILURE() << member.clique->name << ": " << Describe(operation, member.rank)
                  << ", which does not lie within an allocation of its device";
    return ncclInvalidArgument;
  }
  return ncclSuccess;
}

ncclResult_t Network::Add(const char* function, const Operation& operation, ncclComm_t comm,
                          cudaStream_t stream) {
  std::vector<Pending> pending;
  {
    absl::MutexLock lock(&mutex_);
    if (const ncclResult_t result = Enter(function); result != ncclSuccess) return result;
    Member member = Find(comm);
    if (member == nullptr) return ncclInvalidArgument;
    if (const ncclResult_t result = Ready(*member); result != ncclSuccess) return result;
    const ncclResult_t result = Check(operation, *member, stream);
    if (result != ncclSuccess) return result;
    Group& open = group();
    open.pending.push_back({std::move(member), stream, operation});
    if (open.depth > 0) return ncclSuccess;
    pending = std::exchange(open.pending, {});
  }
  return SubmitAll(std::move(pending));
}

ncclResult_t Network::SubmitAll(std::vector<Pending> pending) {
  ncclResult_t result = ncclSuccess;
  while (!pending.empty()) {
    const Member member = pending.front().member;
    const cudaStream_t stream = pending.front().stream;
    std::vector<Operation> operations;
    std::vector<Pending> others;
    for (Pending& one : pending) {
      if (one.member != member) {
        others.push_back(std::move(one));
        continue;
      }
      if (one.stream != stream) {
        ADD_FAILURE() << "a group gives operations of one communicator to two streams";
      }
      operations.push_back(one.operation);
    }
    pending = std::move(others);
    const cudaError_t error =
        EmulatedCuda::Enqueue(stream, [this, member, operations = std::move(operations)] {
          Perform(member, operations);
          return cudaSuccess;
        });
    if (error != cudaSuccess) return ncclUnhandledCudaError;
    absl::MutexLock lock(&mutex_);
    if (member->blocking || polls_ == 0) continue;
    member->polls = polls_;
    result = ncclInProgress;
  }
  return result;
}

ncclResult_t Network::Send(const void* from, size_t count, ncclDataType_t type, int peer,
                           ncclComm_t comm, cudaStream_t stream) {
  return Add("send",
             {.verb = Verb::kSend, .from = from, .count = count, .type = type, .peer = peer}, comm,
             stream);
}

ncclResult_t Network::Receive(void* to, size_t count, ncclDataType_t type, int peer,
                              ncclComm_t comm, cudaStream_t stream) {
  return Add("receive",
             {.verb = Verb::kReceive, .to = to, .count = count, .type = type, .peer = peer}, comm,
             stream);
}

ncclResult_t Network::AllReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                                ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return Add("all_reduce", {Verb::kAllReduce, from, to, count, type, op}, comm, stream);
}

ncclResult_t Network::Reduce(const void* from, void* to, size_t count, ncclDataType_t type,
                             ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return Add("reduce", {Verb::kReduce, from, to, count, type, op, root}, comm, stream);
}

ncclResult_t Network::ReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type,
                                    ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return Add("reduce_scatter", {Verb::kReduceScatter, from, to, count, type, op}, comm, stream);
}

ncclResult_t Network::AllGather(const void* from, void* to, size_t count, ncclDataType_t type,
                                ncclComm_t comm, cudaStream_t stream) {
  return Add("all_gather", {Verb::kAllGather, from, to, count, type}, comm, stream);
}

ncclResult_t Network::Broadcast(const void* from, void* to, size_t count, ncclDataType_t type,
                                int root, ncclComm_t comm, cudaStream_t stream) {
  return Add("broadcast", {Verb::kBroadcast, from, to, count, type, ncclSum, root}, comm, stream);
}

// --- on the stream ------------------------------------------------------------------------------

bool Network::Await(const Communicator& member, const Operation& operation,
                    const std::function<bool()>& happened) {
  ++waiting_;
  while (!happened() && !Gone(member)) {
    if (changed_.WaitWithTimeout(&mutex_, kPatience)) {
      LOG(WARNING) << member.clique->name << ": " << Describe(operation, member.rank)
                   << ", and waits for its peers";
    }
  }
  --waiting_;
  return happened();
}

void Network::Disagree(Clique& clique, const std::string& what) {
  clique.disagreed = true;
  ADD_FAILURE() << clique.name << ": " << what;
  for (const auto& [handle, member] : members_) {
    if (member->clique.get() == &clique) member->error = ncclInvalidUsage;
  }
  changed_.SignalAll();
}

std::shared_ptr<Meeting> Network::Arrive(Communicator& member, const Operation& operation,
                                         Bytes input) {
  Clique& clique = *member.clique;
  auto& meeting = clique.meetings[member.next_meeting++];
  if (meeting == nullptr) {
    meeting = std::make_shared<Meeting>();
    meeting->first = operation;
    meeting->first_rank = member.rank;
    meeting->inputs.resize(clique.size);
  }
  if (!Agree(meeting->first, operation)) {
    Disagree(clique, absl::StrCat(Describe(operation, member.rank), ", but ",
                                  Describe(meeting->first, meeting->first_rank)));
  }
  meeting->inputs[member.rank] = std::move(input);
  ++meeting->arrived;
  return meeting;
}

bool Network::PerformReceive(Communicator& member, const Operation& operation) {
  std::shared_ptr<Message> message;
  {
    absl::MutexLock lock(&mutex_);
    auto& messages = member.clique->messages[{operation.peer, member.rank}];
    if (!Await(member, operation, [&messages] { return !messages.empty(); })) return false;
    message = messages.front();
    messages.pop_front();
    if (message->sent.count != operation.count || message->sent.type != operation.type) {
      Disagree(*member.clique, absl::StrCat(Describe(operation, member.rank), ", but ",
                                            Describe(message->sent, operation.peer)));
      return false;
    }
  }
  if (!message->bytes.empty()) {
    std::memcpy(operation.to, message->bytes.data(), message->bytes.size());
  }
  absl::MutexLock lock(&mutex_);
  message->taken = true;
  changed_.SignalAll();
  return true;
}

bool Network::PerformMeeting(Communicator& member, const Operation& operation,
                             const std::shared_ptr<Meeting>& meeting) {
  const int ranks = member.clique->size;
  {
    absl::MutexLock lock(&mutex_);
    const bool came = Await(member, operation, [&] { return meeting->arrived == ranks; });
    if (!came || member.clique->disagreed) return false;
  }
  Write(operation, member.rank, meeting->inputs);
  absl::MutexLock lock(&mutex_);
  if (++meeting->left == ranks) {
    auto& meetings = member.clique->meetings;
    for (auto at = meetings.begin(); at != meetings.end(); ++at) {
      if (at->second != meeting) continue;
      meetings.erase(at);
      break;
    }
  }
  return true;
}

void Network::Perform(const Member& member, const std::vector<Operation>& operations) {
  Communicator& self = *member;
  const int ranks = self.clique->size;
  std::vector<Bytes> inputs;
  for (const Operation& operation : operations) {
    inputs.push_back(Read(operation, self.rank, ranks));
  }
  // The group's messages are sent first, so that its operations make progress together.
  std::vector<std::shared_ptr<Message>> sent(operations.size());
  std::vector<std::shared_ptr<Meeting>> meetings(operations.size());
  {
    absl::MutexLock lock(&mutex_);
    if (Gone(self)) return;
    for (size_t i = 0; i < operations.size(); ++i) {
      const Operation& operation = operations[i];
      if (operation.verb == Verb::kSend) {
        sent[i] = std::make_shared<Message>(Message{operation, std::move(inputs[i])});
        self.clique->messages[{self.rank, operation.peer}].push_back(sent[i]);
      } else if (operation.verb != Verb::kReceive) {
        meetings[i] = Arrive(self, operation, std::move(inputs[i]));
      }
    }
    changed_.SignalAll();
  }
  for (size_t i = 0; i < operations.size(); ++i) {
    const Operation& operation = operations[i];
    if (operation.verb == Verb::kReceive && !PerformReceive(self, operation)) return;
    if (meetings[i] != nullptr && !PerformMeeting(self, operation, meetings[i])) return;
  }
  absl::MutexLock lock(&mutex_);
  for (size_t i = 0; i < operations.size(); ++i) {
    const Message* message = sent[i].get();
    if (message == nullptr) continue;
    if (!Await(self, operations[i], [message] { return message->taken; })) return;
  }
}

}  // namespace cadre::emulated
