// The communicators of an NCCL among the threads of one process (in_process_nccl.h): how ranks join
// and leave them, their errors, and the faults that tests inject into ranks.
//
// Ranks, also in the functions that inject faults, are those passed to ncclCommInitRank.
// Thread-safe.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace cadre::in_process {

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

// The communicator of one rank. Guarded by the mutex of Communicators.
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

struct InProcessNcclOptions {
  // Maximum time to wait for a peer; then the communicator is broken. NCCL has no limit.
  absl::Duration limit = absl::InfiniteDuration();
  // Whether a communicator that one rank aborts is broken on all ranks. NCCL does not promise it.
  bool aborts_break_peers = false;
};

class Communicators {
 public:
  virtual ~Communicators() = default;
  Communicators(const Communicators&) = delete;
  Communicators& operator=(const Communicators&) = delete;

  // --- faults -----------------------------------------------------------------------------------
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
  // Communicators that were neither destroyed nor aborted, and buffers that were not deregistered.
  int64_t live_communicators() const;
  int64_t live_registrations() const;

  // --- functions of NcclApi ---------------------------------------------------------------------
  ncclResult_t UniqueId(ncclUniqueId* id);
  ncclResult_t Init(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config);
  ncclResult_t SplitComm(ncclComm_t comm, int color, int key, ncclComm_t* made,
                         ncclConfig_t* config);
  ncclResult_t Finalize(ncclComm_t comm);
  ncclResult_t Destroy(ncclComm_t comm);
  ncclResult_t Abort(ncclComm_t comm);
  ncclResult_t AsyncError(ncclComm_t comm, ncclResult_t* error);
  ncclResult_t Register(ncclComm_t comm, void* memory, size_t bytes, void** handle);
  ncclResult_t Deregister(ncclComm_t comm, void* handle);
  // The error that broke the communicator, or an empty text. Valid until the thread's next call.
  const char* LastError(ncclComm_t comm);

 protected:
  // Shared by the table and by work that is enqueued.
  using Member = std::shared_ptr<Communicator>;

  explicit Communicators(const InProcessNcclOptions& options) : options_(options) {}

  // The devices of a communicator that the calling thread makes: see Communicator::devices.
  virtual std::map<uint64_t, int> CurrentDevices() const { return {}; }

  // Null for an invalid handle.
  Member Find(ncclComm_t comm) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  ncclResult_t Ready(const Communicator& member) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The communicator was aborted or has failed, or its rank was killed.
  bool Gone(const Communicator& member) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Breaks the communicator on all ranks.
  void BreakClique(Clique& clique, ncclResult_t error, const std::string& what)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const InProcessNcclOptions options_;
  mutable absl::Mutex mutex_;
  // Signalled when ranks, communicators or their operations change.
  absl::CondVar changed_;
  int polls_ ABSL_GUARDED_BY(mutex_) = 0;

 private:
  bool Complete(const Communicator& member) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The result of a call that may leave work in progress.
  ncclResult_t Started(Communicator& member) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AwaitComplete(const Communicator& member) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FinishSplit(const Communicator& parent, Split& split) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  std::set<int> hanging_ ABSL_GUARDED_BY(mutex_);
  std::set<int> aborts_hang_ ABSL_GUARDED_BY(mutex_);
  int64_t aborts_ ABSL_GUARDED_BY(mutex_) = 0;
  std::set<int> killed_ ABSL_GUARDED_BY(mutex_);
  std::map<int, ncclResult_t> broken_ ABSL_GUARDED_BY(mutex_);
  uint64_t ids_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, std::shared_ptr<Clique>> cliques_ ABSL_GUARDED_BY(mutex_);
  std::map<const void*, Member> members_ ABSL_GUARDED_BY(mutex_);
  std::map<const void*, std::unique_ptr<char>> registrations_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre::in_process
