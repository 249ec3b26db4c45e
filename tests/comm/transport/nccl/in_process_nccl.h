// An NCCL among the threads of one process, for tests: it implements the functions of
// comm/transport/nccl/nccl_api.h except the transfer of data, which derived classes define.
// tests/emulator/fake_nccl.h works inside the streams of emulated devices, and device_copy_nccl.h
// by copies and events of CUDA on one device.
//
// Like NCCL: the operations of a group make progress together; a send ends when it has been
// received; non-blocking communicators return ncclInProgress until all ranks have joined. Sums are
// added in the order of the ranks, fp32 in fp32, bf16 in fp32 and rounded once. Stricter: a group's
// operations of one communicator must use one stream; operations of peers that do not match break
// the communicator on all its ranks with a message that names both operations. Unlike NCCL:
// operations of one communicator on two streams are not ordered.
//
// Ranks, also in the functions that inject faults, are those passed to ncclCommInitRank. One object
// is one network, and must outlive the use of its communicators. Thread-safe.
//
// in_process_nccl.cc has communicators, in_process_operations.cc messages and collectives.
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
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "comm/transport/nccl/nccl_api.h"
#include "tests/emulator/call_table.h"

namespace cadre::in_process {

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

// A point in the work of a rank, as a derived class represents it.
struct Mark {
  virtual ~Mark() = default;
};
// Shared by the rank and its peers, whichever needs it last.
using MarkPtr = std::shared_ptr<Mark>;

// Data of a rank, which peers may read after the mark.
struct Offer {
  const char* data = nullptr;
  MarkPtr ready;
};

// A message that was sent.
struct Message {
  Operation sent;
  Offer offer;
  bool taken = false;
  // After this the data have been read.
  MarkPtr read;
};

// A collective.
struct Meeting {
  Operation first;
  int first_rank = 0;
  // By rank.
  std::vector<Offer> offers;
  std::set<int> arrived;
  std::set<int> left;
  // By rank: after this it has read the offers.
  std::vector<MarkPtr> read;
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
  // The error that broke the communicator on all ranks; empty: none.
  std::string failure;
};

// The communicator of one rank. Guarded by the InProcessNccl's mutex.
struct Communicator {
  // Null until all ranks of the split have arrived.
  std::shared_ptr<Clique> clique;
  int rank = 0;
  int world_rank = 0;
  bool blocking = true;
  // The devices that were current in the thread that made the communicator, by emulated machine.
  // Its operations must use one of them.
  std::map<uint64_t, int> devices;
  bool aborted = false;
  ncclResult_t error = ncclSuccess;
  int polls = 0;
  uint64_t next_meeting = 0;
  uint64_t next_split = 0;
  // The communicator of a split in progress; null if there is none.
  std::shared_ptr<Communicator> splitting;
};

// The name of a type and the bytes of an element; 0 for a type that is not supported.
struct TypeInfo {
  ncclDataType_t type = ncclFloat32;
  const char* name = "";
  size_t bytes = 0;
};
TypeInfo TypeOf(ncclDataType_t type);

// Numbers of elements that rank `rank` reads and writes in an operation of `ranks` ranks.
size_t Reads(const Operation& operation, int rank, int ranks);
size_t Writes(const Operation& operation, int rank, int ranks);

// "rank 1 receives 4 fp32 from 0".
std::string Describe(const Operation& operation, int rank);

struct InProcessNcclOptions {
  // Maximum time to wait for a peer; then the communicator is broken. NCCL has no limit.
  absl::Duration limit = absl::InfiniteDuration();
  // Whether a communicator that one rank aborts is broken on all ranks. NCCL does not promise it.
  bool aborts_break_peers = false;
};

class InProcessNccl {
 public:
  virtual ~InProcessNccl();
  InProcessNccl(const InProcessNccl&) = delete;
  InProcessNccl& operator=(const InProcessNccl&) = delete;

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
  // The error that broke the communicator, or an empty text. Valid until the thread's next call.
  const char* LastError(ncclComm_t comm);

 protected:
  // Shared by the table and by work that is enqueued.
  using Member = std::shared_ptr<Communicator>;
  // Operations of one communicator, in one group.
  using Operations = std::vector<Operation>;

  explicit InProcessNccl(const InProcessNcclOptions& options);

  // Runs all operations of a group by the functions below. False if the communicator was aborted or
  // has failed, or the rank was killed, first.
  bool Perform(const Member& member, const Operations& operations, cudaStream_t stream);
  // Breaks the member's communicator on all ranks.
  void Fail(const Member& member, ncclResult_t error, const std::string& what);
  // The error of the communicator, ncclSuccess if there is none.
  ncclResult_t ErrorOf(const Communicator& member) const;

  // --- the transfer of data; called without locks -----------------------------------------------
  // Executes the operations by Perform, now or later.
  virtual ncclResult_t Submit(const Member& member, Operations operations, cudaStream_t stream) = 0;
  // The input of the operation for its peers.
  virtual absl::StatusOr<Offer> MakeOffer(const Operation& operation, int rank, int ranks,
                                          cudaStream_t stream) = 0;
  // Marks the present point of the stream's work. Null: the work has been executed.
  virtual absl::StatusOr<MarkPtr> MarkNow(cudaStream_t stream) = 0;
  // Later work of the stream runs after the mark, which may be null.
  virtual absl::Status Follow(const Mark* mark, cudaStream_t stream) = 0;
  virtual absl::Status Copy(const void* from, void* to, size_t bytes, cudaStream_t stream) = 0;
  // to[i] = the sum of element offset + i of all inputs, for i < count, in the order of the ranks.
  virtual absl::Status Sum(ncclDataType_t type, const std::vector<const char*>& inputs,
                           size_t offset, size_t count, void* to, cudaStream_t stream) = 0;
  // Whether peers read offers after the operation has ended on the rank that made them.
  virtual bool offers_are_copies() const = 0;
  // An error if the operation cannot use the stream or its buffers. Called with the mutex held.
  virtual ncclResult_t CheckBuffers(const Operation& /*operation*/, const Communicator& /*member*/,
                                    cudaStream_t /*stream*/) {
    return ncclSuccess;
  }
  // See Communicator::devices.
  virtual std::map<uint64_t, int> CurrentDevices() const { return {}; }
  // Operations did not match, or a group was invalid. Called with the mutex held.
  virtual void OnMistake(const std::string& /*what*/) {}

 private:
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
  ncclResult_t CheckCall(const Operation& operation, const Communicator& member,
                         cudaStream_t stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  ncclResult_t SubmitAll(std::vector<Pending> pending);
  // The parts of Perform.
  using Sent = std::vector<std::shared_ptr<Message>>;
  using Meetings = std::vector<std::shared_ptr<Meeting>>;
  bool Post(const Member& member, const Operations& operations, cudaStream_t stream, Sent& sent,
            Meetings& meetings);
  bool TakeMessage(const Member& member, const Operation& operation, cudaStream_t stream);
  bool Meet(const Member& member, const Operation& operation, Meeting& meeting,
            cudaStream_t stream);
  bool AwaitReaders(const Member& member, const Operation& operation, Message* message,
                    Meeting* meeting, cudaStream_t stream);
  absl::Status Combine(const Operation& operation, int rank, const std::vector<Offer>& offers,
                       cudaStream_t stream);
  // Breaks the communicator after an error of the device. Returns status.ok().
  bool Check(const Member& member, const Operation& operation, const absl::Status& status);
  std::shared_ptr<Meeting> Arrive(Communicator& member, const Operation& operation, Offer offer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits until `absent`, the ranks that the operation waits for, returns none. False if the
  // communicator was aborted or has failed, or its rank was killed, first.
  bool Await(const Communicator& member, const Operation& operation,
             const std::function<std::vector<int>()>& absent) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Fail(Clique& clique, ncclResult_t error, const std::string& what)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Disagree(Clique& clique, const std::string& what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const InProcessNcclOptions options_;
  uint64_t number_ = 0;
  int slot_ = 0;
  emulated::CallLog<ncclResult_t> calls_;
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

}  // namespace cadre::in_process
