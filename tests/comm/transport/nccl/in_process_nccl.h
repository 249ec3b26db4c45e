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
// One object is one network, and must outlive the use of its communicators. Thread-safe.
//
// in_process_communicators.h has communicators, in_process_operations.cc messages and collectives.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "comm/transport/nccl/nccl_api.h"
#include "tests/comm/transport/nccl/in_process_communicators.h"
#include "tests/emulator/call_table.h"

namespace cadre::in_process {

inline constexpr int kMaxNccls = 8;

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

class InProcessNccl : public Communicators {
 public:
  ~InProcessNccl() override;

  const NcclApi& api() const;

  // --- faults -----------------------------------------------------------------------------------
  // The next call of `function` (a member of NcclApi) after `after` others fails.
  void FailNext(absl::string_view function, ncclResult_t error, int64_t after = 0) {
    calls_.FailNext(function, error, after);
  }

  // --- observations ----------------------------------------------------------------------------
  int64_t calls(absl::string_view function) const { return calls_.calls(function); }
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

 protected:
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
  void Disagree(Clique& clique, const std::string& what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  uint64_t number_ = 0;
  int slot_ = 0;
  emulated::CallLog<ncclResult_t> calls_;
  int64_t waiting_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace cadre::in_process
