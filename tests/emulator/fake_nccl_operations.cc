// Operations of the fake NCCL: enqueueing, and matching with peers.
#include <cuda_bf16.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "glog/logging.h"
#include "gtest/gtest.h"
#include "tests/emulator/emulated_cuda.h"
#include "tests/emulator/fake_nccl.h"

namespace cadre::emulated {
namespace {

// An operation that waits longer than this logs its peers, and continues to wait, as NCCL's do.
constexpr absl::Duration kPatience = absl::Seconds(20);

// The sums of elements of type T, taken in type Sum and rounded once.
template <typename T, typename Sum>
void AddRanks(const std::vector<Bytes>& inputs, size_t offset, size_t count, void* to) {
  for (size_t i = 0; i < count; ++i) {
    const auto element = [at = (offset + i) * sizeof(T)](const Bytes& input) {
      T value;
      std::memcpy(&value, input.data() + at, sizeof(T));
      return static_cast<Sum>(value);
    };
    Sum sum = element(inputs[0]);
    for (size_t rank = 1; rank < inputs.size(); ++rank) sum += element(inputs[rank]);
    const T result(sum);
    std::memcpy(static_cast<char*>(to) + i * sizeof(T), &result, sizeof(T));
  }
}

struct TypeInfo {
  ncclDataType_t type;
  const char* name;
  // 0 for a type that is not emulated.
  size_t bytes;
  // to[i] = the sum of element offset + i of all inputs, for i < count, in the order of the ranks.
  void (*add)(const std::vector<Bytes>& inputs, size_t offset, size_t count, void* to);
};
template <typename T, typename Sum = T>
constexpr TypeInfo InfoOf(ncclDataType_t type, const char* name) {
  return {type, name, sizeof(T), &AddRanks<T, Sum>};
}
constexpr TypeInfo kTypes[] = {
    InfoOf<uint8_t>(ncclUint8, "uint8"),    InfoOf<__nv_bfloat16, float>(ncclBfloat16, "bf16"),
    InfoOf<uint64_t>(ncclUint64, "uint64"), InfoOf<float>(ncclFloat32, "fp32"),
    InfoOf<double>(ncclFloat64, "fp64"),
};

TypeInfo TypeOf(ncclDataType_t type) {
  for (const TypeInfo& info : kTypes) {
    if (info.type == type) return info;
  }
  return {.type = type, .name = "elements of an unsupported type", .bytes = 0, .add = nullptr};
}

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

bool HasPeer(Verb verb) {
  return verb == Verb::kSend || verb == Verb::kReceive || verb == Verb::kReduce ||
         verb == Verb::kBroadcast;
}

// Whether operations of two ranks belong to the same collective.
bool Agree(const Operation& a, const Operation& b) {
  return a.verb == b.verb && a.count == b.count && a.type == b.type &&
         (!HasPeer(a.verb) || a.peer == b.peer);
}

Bytes Read(const Operation& o, int rank, int ranks) {
  const auto* begin = static_cast<const char*>(o.from);
  const size_t bytes = Reads(o, rank, ranks) * TypeOf(o.type).bytes;
  return bytes == 0 ? Bytes() : Bytes(begin, begin + bytes);
}

void Write(const Operation& o, int rank, const std::vector<Bytes>& inputs) {
  const TypeInfo type = TypeOf(o.type);
  const size_t bytes = o.count * type.bytes;
  auto* to = static_cast<char*>(o.to);
  switch (o.verb) {
    case Verb::kAllReduce:
      return type.add(inputs, 0, o.count, to);
    case Verb::kReduce:
      if (o.peer == rank) type.add(inputs, 0, o.count, to);
      return;
    case Verb::kReduceScatter:
      return type.add(inputs, o.count * rank, o.count, to);
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

}  // namespace

// --- enqueueing ---------------------------------------------------------------------------------

ncclResult_t FakeNccl::GroupStart() {
  ++group().depth;
  return ncclSuccess;
}

ncclResult_t FakeNccl::GroupEnd() {
  const ncclResult_t result = calls_.Enter("group_end");
  if (group().depth == 0) return ncclInvalidUsage;
  if (--group().depth > 0) return result;
  std::vector<Pending> pending = std::exchange(group().pending, {});
  return result != ncclSuccess ? result : SubmitAll(std::move(pending));
}

ncclResult_t FakeNccl::Check(const Operation& operation, const Communicator& member,
                             cudaStream_t stream) {
  const int ranks = member.clique->size;
  const size_t width = TypeOf(operation.type).bytes;
  if (width == 0 || operation.op != ncclSum) return ncclInvalidArgument;
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

ncclResult_t FakeNccl::Add(const Operation& operation, ncclComm_t comm, cudaStream_t stream) {
  std::vector<Pending> pending;
  {
    absl::MutexLock lock(&mutex_);
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

ncclResult_t FakeNccl::SubmitAll(std::vector<Pending> pending) {
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

ncclResult_t FakeNccl::Send(const void* from, size_t count, ncclDataType_t type, int peer,
                            ncclComm_t comm, cudaStream_t stream) {
  return Add({.verb = Verb::kSend, .from = from, .count = count, .type = type, .peer = peer}, comm,
             stream);
}

ncclResult_t FakeNccl::Receive(void* to, size_t count, ncclDataType_t type, int peer,
                               ncclComm_t comm, cudaStream_t stream) {
  return Add({.verb = Verb::kReceive, .to = to, .count = count, .type = type, .peer = peer}, comm,
             stream);
}

ncclResult_t FakeNccl::AllReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                                 ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return Add({Verb::kAllReduce, from, to, count, type, op}, comm, stream);
}

ncclResult_t FakeNccl::Reduce(const void* from, void* to, size_t count, ncclDataType_t type,
                              ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return Add({Verb::kReduce, from, to, count, type, op, root}, comm, stream);
}

ncclResult_t FakeNccl::ReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type,
                                     ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return Add({Verb::kReduceScatter, from, to, count, type, op}, comm, stream);
}

ncclResult_t FakeNccl::AllGather(const void* from, void* to, size_t count, ncclDataType_t type,
                                 ncclComm_t comm, cudaStream_t stream) {
  return Add({Verb::kAllGather, from, to, count, type}, comm, stream);
}

ncclResult_t FakeNccl::Broadcast(const void* from, void* to, size_t count, ncclDataType_t type,
                                 int root, ncclComm_t comm, cudaStream_t stream) {
  return Add({Verb::kBroadcast, from, to, count, type, ncclSum, root}, comm, stream);
}

// --- on the stream ------------------------------------------------------------------------------

bool FakeNccl::Await(const Communicator& member, const Operation& operation,
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

void FakeNccl::Disagree(Clique& clique, const std::string& what) {
  clique.disagreed = true;
  ADD_FAILURE() << clique.name << ": " << what;
  for (const auto& [handle, member] : members_) {
    if (member->clique.get() == &clique) member->error = ncclInvalidUsage;
  }
  changed_.SignalAll();
}

std::shared_ptr<Meeting> FakeNccl::Arrive(Communicator& member, const Operation& operation,
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

bool FakeNccl::PerformReceive(Communicator& member, const Operation& operation) {
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

bool FakeNccl::PerformMeeting(Communicator& member, const Operation& operation,
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

void FakeNccl::Perform(const Member& member, const std::vector<Operation>& operations) {
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
