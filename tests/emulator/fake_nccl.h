// A fake NCCL for tests, among the threads of one process: it implements the functions of
// worker/transport/nccl/nccl_api.h. Each rank is a thread with an emulated device.
//
// Like NCCL: operations are enqueued and wait for their peers inside the stream (in the calling
// thread with EmulatedCuda::Mode::kInline); the operations of a group make progress together; a
// send ends when it has been received; operations can be captured; non-blocking communicators
// return ncclInProgress until all ranks have joined; operations do not end by themselves if a rank
// is lost. Sums are added in the order of the ranks, fp32 in fp32, bf16 in fp32 and rounded once. A
// communicator belongs to the device that was current when it was made, and does not work on other
// devices. Stricter: buffers must be within allocations of the device; a group's operations of one
// communicator must use one stream; operations of peers that do not match fail the test with a
// message that names both, and the communicator. Unlike NCCL: operations of one communicator on two
// streams are not ordered.
//
// Ranks, also in the functions that inject faults, are those passed to ncclCommInitRank. One object
// is one network, and must outlive the use of its communicators. Thread-safe.
//
// fake_nccl.cc has communicators, fake_nccl_operations.cc messages and collectives.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "tests/emulator/call_table.h"
#include "worker/transport/nccl/nccl_api.h"

namespace cadre::emulated {

using Bytes = std::vector<char>;

inline constexpr int kMaxNccls = 8;

enum class Verb : uint8_t {
  kSend,
  kReceive,
  kAllReduce,
  kReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
};

// An operation of one rank.
struct Operation {
  Verb verb = Verb::kSend;
  const void* from = nullptr;
  void* to = nullptr;
  size_t count = 0;
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t op = ncclSum;
  // The peer of a message, or the root.
  int peer = 0;
};

// A message that was sent.
struct Message {
  Operation sent;
  Bytes bytes;
  bool taken = false;
};

// A collective. Its inputs are read only when all ranks have arrived.
struct Meeting {
  Operation first;
  int first_rank = 0;
  std::vector<Bytes> inputs;
  int arrived = 0;
  int left = 0;
};

struct Communicator;

// A split of a communicator for which not all ranks have arrived yet.
struct Split {
  struct Part {
    int color = 0, key = 0, rank = 0;
    std::shared_ptr<Communicator> made;
  };
  std::vector<Part> parts;
};

// The ranks of one communicator.
struct Clique {
  std::string name;
  int size = 0;
  std::set<int> joined;
  // By sender and receiver.
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Message>>> messages;
  std::map<uint64_t, std::shared_ptr<Meeting>> meetings;
  // By number: the n-th splits of all ranks belong together.
  std::map<uint64_t, Split> splits;
  bool disagreed = false;
};

// The communicator of one rank. Guarded by the FakeNccl's mutex.
struct Communicator {
  // Null until all ranks of the split have arrived.
  std::shared_ptr<Clique> clique;
  int rank = 0;
  int world_rank = 0;
  bool blocking = true;
  // The devices that were current, on each machine, in the thread that made the communicator. Its
  // operations must use one of them.
  std::map<uint64_t, int> devices;
  bool aborted = false;
  ncclResult_t error = ncclSuccess;
  int polls = 0;
  uint64_t next_meeting = 0;
  uint64_t next_split = 0;
  // The communicator of a split in progress; null if there is none.
  std::shared_ptr<Communicator> splitting;
};

class FakeNccl {
 public:
  FakeNccl();
  ~FakeNccl();
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;

  const NcclApi& api() const;

  // --- faults -----------------------------------------------------------------------------------
  // The next call of `function` (a member of NcclApi) after `after` others fails.
  void FailNext(absl::string_view function, ncclResult_t error, int64_t after = 0) {
    calls_.FailNext(function, error, after);
  }
  // The rank's init never reaches its peers.
  void HangInit(int rank);
  // From now on the rank is lost: its operations have no effect, and those that wait end.
  void Kill(int rank);
  // The rank's aborts take effect, but do not return until EndAborts is called, which waits for
  // them.
  void HangAborts(int rank);
  void EndAborts();
  // The rank's communicators, including later ones, report this error.
  void Break(int rank, ncclResult_t error);
  // Calls of non-blocking communicators that may return ncclInProgress return it until async_error
  // has been called `polls` times. Initially 0.
  void set_polls(int polls);

  // --- observations ----------------------------------------------------------------------------
  int64_t calls(absl::string_view function) const { return calls_.calls(function); }
  // Communicators that were neither destroyed nor aborted, and buffers that were not deregistered.
  int64_t live_communicators() const;
  int64_t live_registrations() const;
  // Operations that wait for peers now.
  int64_t waiting() const;

  // --- the functions of NcclApi -----------------------------------------------------------------
  // Counts a call; then calls the method, unless an error was injected into the call.
  template <typename Method, typename... Arguments>
  ncclResult_t Call(const char* function, Method method, Arguments&... arguments) {
    const ncclResult_t injected = calls_.Enter(function);
    return injected != ncclSuccess ? injected : (this->*method)(arguments...);
  }
  ncclResult_t Version(int* version);
  ncclResult_t UniqueId(ncclUniqueId* id);
  ncclResult_t Init(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config);
  ncclResult_t SplitComm(ncclComm_t comm, int color, int key, ncclComm_t* made,
                         ncclConfig_t* config);
  ncclResult_t Finalize(ncclComm_t comm);
  ncclResult_t Destroy(ncclComm_t comm);
  ncclResult_t Abort(ncclComm_t comm);
  ncclResult_t AsyncError(ncclComm_t comm, ncclResult_t* error);
  ncclResult_t GroupStart();
  ncclResult_t GroupEnd();
  ncclResult_t Send(const void* from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                    cudaStream_t stream);
  ncclResult_t Receive(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                       cudaStream_t stream);
  ncclResult_t AllReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                         ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
  ncclResult_t Reduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                      int root, ncclComm_t comm, cudaStream_t stream);
  ncclResult_t ReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type,
                             ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
  ncclResult_t AllGather(const void* from, void* to, size_t count, ncclDataType_t type,
                         ncclComm_t comm, cudaStream_t stream);
  ncclResult_t Broadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                         ncclComm_t comm, cudaStream_t stream);
  ncclResult_t Register(ncclComm_t comm, void* memory, size_t bytes, void** handle);
  ncclResult_t Deregister(ncclComm_t comm, void* handle);

 private:
  using Member = std::shared_ptr<Communicator>;
  struct Pending {
    Member member;
    cudaStream_t stream;
    Operation operation;
  };
  // The operations between a host thread's group start and group end.
  struct Group {
    uint64_t nccl = 0;
    int depth = 0;
    std::vector<Pending> pending;
  };

  Group& group() const;
  // Null for an invalid handle.
  Member Find(ncclComm_t comm) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Complete(const Communicator& member) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  ncclResult_t Ready(const Communicator& member) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The result of a call that may leave work in progress.
  ncclResult_t Started(Communicator& member) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AwaitComplete(const Communicator& member) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Gone(const Communicator& member) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FinishSplit(const Communicator& parent, Split& split) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  ncclResult_t Add(const Operation& operation, ncclComm_t comm, cudaStream_t stream);
  ncclResult_t Check(const Operation& operation, const Communicator& member, cudaStream_t stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  ncclResult_t SubmitAll(std::vector<Pending> pending);
  // Runs all operations of one group. Called by the stream.
  void Perform(const Member& member, const std::vector<Operation>& operations);
  bool PerformReceive(Communicator& member, const Operation& operation);
  bool PerformMeeting(Communicator& member, const Operation& operation,
                      const std::shared_ptr<Meeting>& meeting);
  std::shared_ptr<Meeting> Arrive(Communicator& member, const Operation& operation, Bytes input)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits for the condition `happened`. False if the communicator was aborted or its rank was
  // killed first.
  bool Await(const Communicator& member, const Operation& operation,
             const std::function<bool()>& happened) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Disagree(Clique& clique, const std::string& what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  uint64_t number_ = 0;
  int slot_ = 0;
  CallLog<ncclResult_t> calls_;
  mutable absl::Mutex mutex_;
  absl::CondVar changed_;
  std::set<int> hanging_ ABSL_GUARDED_BY(mutex_);
  std::set<int> aborts_hang_ ABSL_GUARDED_BY(mutex_);
  int64_t aborts_ ABSL_GUARDED_BY(mutex_) = 0;
  std::set<int> killed_ ABSL_GUARDED_BY(mutex_);
  std::map<int, ncclResult_t> broken_ ABSL_GUARDED_BY(mutex_);
  int polls_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t ids_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, std::shared_ptr<Clique>> cliques_ ABSL_GUARDED_BY(mutex_);
  std::map<const void*, Member> members_ ABSL_GUARDED_BY(mutex_);
  std::map<const void*, std::unique_ptr<char>> registrations_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre::emulated

namespace cadre {

using emulated::FakeNccl;

}  // namespace cadre
